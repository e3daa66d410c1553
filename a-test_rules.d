test_rules.o: tests/test_rules.c tests/check.h tests/harness/simulation.h \
 src/sync/simulation.h src/link/simulated.h src/link/link.h \
 include/descant.h src/sync/tables.h src/sync/round.h \
 src/kernels/kernels.h src/sync/outer_step.h src/sync/plan.h \
 src/kernels/wire.h src/base/base.h src/sync/replica.h \
 src/fabric/fabric.h src/fabric/agree.h src/fabric/bulletins.h \
 src/kernels/vector.h tests/harness/suite.h tests/harness/values.h
tests/check.h:
tests/harness/simulation.h:
src/sync/simulation.h:
src/link/simulated.h:
src/link/link.h:
include/descant.h:
src/sync/tables.h:
src/sync/round.h:
src/kernels/kernels.h:
src/sync/outer_step.h:
src/sync/plan.h:
src/kernels/wire.h:
src/base/base.h:
src/sync/replica.h:
src/fabric/fabric.h:
src/fabric/agree.h:
src/fabric/bulletins.h:
src/kernels/vector.h:
tests/harness/suite.h:
tests/harness/values.h:
