# SPDX-License-Identifier: MIT
# Descant: the library, the program, the tests. Settings, all given on the command line:
#   CC=clang              another compiler             SAN=address,undefined | SAN=thread
#   WERROR=1              warnings are errors          PREFIX=/usr DESTDIR=/tmp/image
#   V=1                   whole commands are shown   CC=aarch64-linux-gnu-gcc: for another machine
# Each compiler, target and sanitizer builds into a folder of its own,
# build/<cc>[-<target, of another machine>][-<san>][-werror]. ld, ar and objcopy are CC's.

VERSION := 0.1.0
SONAME := libdescant.so.0
PREFIX ?= /usr/local
ifneq ($(filter install uninstall,$(MAKECMDGOALS)),)
ifneq ($(words $(PREFIX)) $(filter-out /%,$(PREFIX)),1 )
$(error PREFIX is '$(PREFIX)': it must name one folder, from / on, without spaces)
endif
endif
override PREFIX := $(abspath $(PREFIX))
LIBDIR ?= $(PREFIX)/lib
ifeq ($(origin CC),default)
CC := gcc
endif
comma := ,
space := $(comma:,= )
is_clang := $(findstring clang,$(notdir $(CC)))
TARGET_FLAGS := $(filter -m32 -mx32 -m64 --target=%,$(CFLAGS))
TARGET := $(shell $(CC) $(TARGET_FLAGS) -dumpmachine)
# uname names processors otherwise than compilers do, and the kernel's, not the system's.
NATIVE := $(or $(shell { cc -dumpmachine || gcc -dumpmachine; } 2>/dev/null),$(shell uname -m)-)
CROSS := $(filter-out $(firstword $(subst -, ,$(NATIVE)))-%,$(TARGET))
COMPILER := $(foreach w,$(CC) $(TARGET_FLAGS),$(if $(filter -%,$w),$(subst /,-,$(subst =,-,$(w:-%=%))),$(notdir $w)))
B := build/$(subst $(space),-,$(strip $(COMPILER) $(if $(findstring $(CROSS),$(CC)),,$(CROSS)) \
	$(subst $(comma),-,$(SAN)) $(if $(WERROR),werror)))
BUILT_FOR := $(if $(wildcard $(B)/target),$(file <$(B)/target))
ifneq ($(if $(filter-out clean,$(or $(MAKECMDGOALS),all)),$(filter-out $(TARGET),$(BUILT_FOR))),)
$(error $(B) was built for $(BUILT_FOR), $(CC) builds for $(TARGET): name another folder with B=FOLDER, or remove it)
endif
tool = $(or $(shell $(CC) $(TARGET_FLAGS) -print-prog-name=$1),$1)
ifeq ($(origin LD),default)
LD := $(call tool,ld)
endif
ifeq ($(origin AR),default)
AR := $(call tool,ar)
endif
OBJCOPY ?= $(call tool,objcopy)
PKG_CONFIG ?= $(CROSS:%=%-)pkg-config

WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
	-Wcast-qual -Wvla -Wundef -Wwrite-strings -Wconversion $(if $(WERROR),-Werror)
SANITIZE := $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer)
# A sanitizer's reports need lines, and no variables.
BASIC := -std=gnu11 $(if $(SAN),-g1,-g) -fvisibility=hidden -fPIC -ffp-contract=off -pthread -Iinclude -Isrc \
	-D_GNU_SOURCE -MMD -MP $(WARN)
COMPILE = $(CC) $(BASIC) $(if $(SAN),-O1,-O2) $(SANITIZE) $(CFLAGS)
LINK = $(CC) -pthread $(SANITIZE) $(CFLAGS) $(LDFLAGS)
LIBS := -lm -lrt

# The arithmetic is compiled once for every instruction set, and kernels_best.c chooses. Its
# loops stay loops: none may become a call to memcpy, and ThreadSanitizer does not see them. That a
# pointer wraps is left to AddressSanitizer, which sees its use: to check it, too, doubles their time.
KERNEL_SETS := base $(if $(filter x86_64%,$(TARGET)),avx2 avx512)
KERNEL_FLAGS := -O3 -fno-math-errno $(if $(is_clang),-fno-builtin,-fno-tree-loop-distribute-patterns)
KERNEL_SANITIZE := $(if $(findstring thread,$(SAN)),,$(SANITIZE) \
	$(if $(findstring undefined,$(SAN)),-fno-sanitize=pointer-overflow))
FLAGS_avx2 := -mavx2
FLAGS_avx512 := -mavx512f
# The same for the loops of training, which may use fused multiply-adds.
LOOPS_FLAGS := $(KERNEL_FLAGS) -ffp-contract=fast
LOOPS_avx2 := -mavx2 -mfma
LOOPS_avx512 := -mavx512f -mavx512dq -mavx512bw -mavx512vl -mprefer-vector-width=512

# What is done, in a short line; V=1: as it is.
say = $(if $(V),,@echo "  $1 $@" && )

KERNEL_SOURCE := $(wildcard src/kernels/kernels.c)
SOURCES := $(filter-out $(KERNEL_SOURCE),$(wildcard $(patsubst %,src/%/*.c,\
	base machine kernels link fabric shm ranks owners sync bsp)))
OBJECTS := $(SOURCES:src/%.c=$(B)/%.o) \
	$(if $(KERNEL_SOURCE),$(KERNEL_SETS:%=$(B)/kernels/kernels_%.o))

# Training (descant train and its friends) is built where its libraries are; the library needs
# none of them.
TRAIN_PACKAGES := openblas zlib libzstd jansson
HAVE_TRAIN := $(shell $(PKG_CONFIG) --exists $(TRAIN_PACKAGES) 2>/dev/null && echo 1)
LOOPS_SOURCE := $(wildcard src/nn/loops.c)
TRAIN_SOURCES := $(filter-out $(LOOPS_SOURCE),$(wildcard src/nn/*.c src/data/*.c \
	src/run/*.c src/control/*.c src/train/*.c src/report/*.c \
	src/files/*.c))
TRAIN_COMMANDS := $(foreach c,train eval merge gen gen_cache report bsp bsp_status,\
	$(wildcard src/cli/$(c).c))
TRAIN_TESTS := $(wildcard $(patsubst %,tests/test_%.c,models loops learning data input formats \
	report trainer training_ends training_faults training_words run_files run_rules resume scores bsp bsp_control \
	bsp_net train_bsp train_owned train_shards bsp_eval told piped whole shards distinct \
	tables_auto))
ifeq ($(HAVE_TRAIN),1)
BASIC += -DDESCANT_TRAIN $(shell $(PKG_CONFIG) --cflags $(TRAIN_PACKAGES))
# OpenBLAS is loaded by the first model that multiplies (src/nn/blas.c).
TRAIN_LIBS := $(shell $(PKG_CONFIG) --libs $(filter-out openblas,$(TRAIN_PACKAGES)))
TRAIN_OBJECTS := $(TRAIN_SOURCES:src/%.c=$(B)/%.o) \
	$(if $(LOOPS_SOURCE),$(KERNEL_SETS:%=$(B)/nn/loops_%.o))
else
LACKING := $(strip $(foreach p,$(TRAIN_PACKAGES),$(shell $(PKG_CONFIG) --exists $p 2>/dev/null || echo $p)))
WITHOUT := without training, for lack of $(or $(LACKING),HAVE_TRAIN=1)
endif
# One module for each MPI library that is there; CC compiles them, through its wrapper. The wrappers
# know of this machine's libraries alone.
MPICC_openmpi := $(shell command -v mpicc.openmpi || { mpicc --showme:version >/dev/null 2>&1 && \
	command -v mpicc; })
MPICC_mpich := $(shell command -v mpicc.mpich || { mpicc -show 2>/dev/null | grep -q mpich && \
	command -v mpicc; })
MODULES := $(foreach l,$(if $(CROSS),,openmpi mpich),$(if $(MPICC_$l),$(B)/descant-mpi-$l.so))
# And one for TLS, which jobs between hosts need.
HAVE_TLS := $(shell $(PKG_CONFIG) --exists 'libssl >= 3.0' 2>/dev/null && echo 1)
MODULES += $(if $(HAVE_TLS),$(B)/descant-tls.so)
TLS_TESTS := $(wildcard tests/test_tls*.c)
BASIC += -DDESCANT_MODULES='"$(LIBDIR)/descant"'
# descant run needs no training; of what training has, it has signals.c.
HOSTS_OBJECTS := $(patsubst src/%.c,$(B)/%.o,$(wildcard src/hosts/*.c src/hub/*.c))
HOSTS_NEED := $(B)/run/signals.o
PROGRAM_OBJECTS := $(patsubst src/%.c,$(B)/%.o,$(if $(HAVE_TRAIN),$(wildcard src/cli/*.c),\
	$(filter-out $(TRAIN_COMMANDS),$(wildcard src/cli/*.c)))) \
	$(HOSTS_OBJECTS) $(if $(HAVE_TRAIN),,$(HOSTS_NEED))
PROGRAM := $(if $(filter %/main.o,$(PROGRAM_OBJECTS)),$(B)/descant)
CLI_OBJECTS := $(filter-out $(B)/cli/main.o,$(PROGRAM_OBJECTS))
# descant-bench, which `descant bench` runs.
BENCH_OBJECTS := $(patsubst %.c,$(B)/%.o,$(filter-out $(if $(HAVE_TRAIN),,\
	$(patsubst %,bench/program/%.c,train parse modules)),$(wildcard bench/program/*.c)))
BENCH := $(if $(BENCH_OBJECTS),$(B)/descant-bench)
EXAMPLES := $(patsubst examples/%.c,$(B)/examples/%,$(wildcard examples/*.c examples/bsp/*.c)) \
	$(patsubst examples/%.cc,$(B)/examples/%_cc,$(wildcard examples/*.cc))
renamed = $(foreach w,$(CC),$(if $(findstring /,$w),$(dir $w))$(subst $1,$2,$(notdir $w)))
CXX := $(or $(if $(is_clang),$(call renamed,clang,clang++)),\
	$(if $(findstring gcc,$(notdir $(CC))),$(call renamed,gcc,g++)),g++)
SHARED := $(B)/libdescant.so.$(VERSION)
TESTS := $(patsubst tests/%.c,$(B)/tests/%,$(filter-out $(if $(HAVE_TRAIN),,$(TRAIN_TESTS)) \
	$(if $(HAVE_TLS),,$(TLS_TESTS)),$(wildcard tests/test_*.c)))
# ThreadSanitizer has nothing to say to programs of one thread (test_moves and test_owners, too, have
# ranks of one thread over the simulated link), and takes minutes over the ends of
# training, whose code test_trainer runs under it, too. test_bsp_net starts ranks by mpirun, and the
# MPI libraries crash under it; what its processes do over shm is in test_branch and test_post.
# The rest of bsp and of segments has a thread in test_segment_storm alone, and ends of a star are of
# one thread in test_tcp_star, of jobs with threads in test_hub. The programs that test_cli starts have
# the threads of other tests.
ifneq ($(findstring thread,$(SAN)),)
TESTS := $(filter-out $(addprefix %/test_,rules ruling outer_step options hostlist launcher hosts block vector data input formats report plan cli \
	leases models loops wire wire_fabrics wire_jobs training_ends training_faults training_words told run_files resume scores shards distinct \
	fabric members mpi mpi_errors mpi_jobs mpi_rounds joint link_contract tables tables_hot tables_parts tables_comings rows ledger ledger_words check hostile liars comings comings_rows \
	comings_post comings_agree moves owners bsp_control segment segment_faults segment_wild tcp_star simulated simulated_faults simulation scale long_link bsp_net tls tls_strangers tcp_bytes secret),$(TESTS))
endif
# Python is not a sanitizer's program; convergence has the code of test_fabric, many times as often, and
# the ends of training that of test_trainer.
ifneq ($(SAN),)
TESTS := $(filter-out %/test_segment_python %/test_python %/test_convergence %/test_training_ends,$(TESTS))
endif
# Those that take longest begin first, so that none goes on alone at the end; quorum when the
# cluster's hosts are done, for it looks at who comes late.
LONG := $(patsubst %,$(B)/tests/test_%,tcp owners_jobs told deal_jobs python hub fed_jobs train_shards \
	tcp_star processes \
	link_contract trainer bulletins mpi_jobs bsp_net piped comings owners run comings_rows leases ledger \
	training_ends tables_job fabric convergence bsp quorum)
TESTS := $(filter $(TESTS),$(LONG)) $(filter-out $(LONG),$(TESTS))
HARNESS := $(B)/harness/harness.a
TRAIN_HARNESS := $(patsubst %,tests/harness/%.c,bsp data gradients nn program steps training)
HARNESS_OBJECTS := $(patsubst %.c,$(B)/harness/%.o,$(notdir \
	$(filter-out $(if $(HAVE_TRAIN),,$(TRAIN_HARNESS)) $(if $(HAVE_TLS),,%/certificates.c %/ends.c),\
	$(wildcard tests/harness/*.c)) \
	$(wildcard $(patsubst %,tests/%.c,mpi_loopback hostile liars lies ranks_world ranks_world_rows ranks_world_post ranks_world_agree ranks_world_deal \
	sockets tcp_bytes))))
BENCHES := $(patsubst bench/%.c,$(B)/bench/%,$(wildcard bench/*.c))
CHECK_FLAGS = $(shell $(PKG_CONFIG) --cflags check)
CHECK_LIBS = $(shell $(PKG_CONFIG) --libs check)

.PHONY: all python-libraries warnings test test-whole test-slurm test-torch tests models faults faults-million mutations soak bench bench-cluster bench-quality bench-quality-bsp bench-peers chart examples demo \
	demo-plans fuzz setup \
	format install uninstall clean
.SECONDARY:
all: $(SHARED) $(B)/libdescant.a $(PROGRAM) $(BENCH) $(MODULES) $(B)/examples/bsp/logistic
	$(if $(WITHOUT),@echo "  $(PROGRAM) is $(WITHOUT); tools/setup installs what training needs")

# What python/setup.py puts into a wheel.
python-libraries: $(SHARED) $(MODULES)

$(KERNEL_SETS:%=$(B)/kernels/kernels_%.o): $(B)/kernels/kernels_%.o: src/kernels/kernels.c Makefile
	@mkdir -p $(@D)
	$(call say,CC)$(CC) $(BASIC) $(KERNEL_FLAGS) $(FLAGS_$*) $(KERNEL_SANITIZE) -DKERNELS=kernels_$* -c $< -o $@

$(KERNEL_SETS:%=$(B)/nn/loops_%.o): $(B)/nn/loops_%.o: src/nn/loops.c Makefile
	@mkdir -p $(@D)
	$(call say,CC)$(CC) $(BASIC) $(LOOPS_FLAGS) $(LOOPS_$*) $(KERNEL_SANITIZE) -DLOOPS=loops_$* -c $< -o $@

# Which objects lie here; above it is compared.
$(OBJECTS): | $(B)/target
$(B)/target:
	@mkdir -p $(@D) && echo $(TARGET) >$@

# The loop over a gradient, and the one it is measured by; without races, so sanitizers look at it.
$(B)/kernels/sums.o $(B)/bench/program/segment.o: COMPILE += -O3

# The page's template and its style, as C strings.
PAGE := $(patsubst %,$(B)/report/page.%.h,html css)
$(PAGE): $(B)/report/page.%.h: src/report/page.%
	@mkdir -p $(@D)
	@sed 's/["\\]/\\&/g; s/.*/"&\\n"/' $< >$@
$(B)/report/page.o: $(PAGE)
$(B)/report/page.o: COMPILE += -I$(B)/report

# Commands that need training say which libraries are missing.
$(B)/cli/cli.o: COMPILE += -DDESCANT_WITHOUT='"$(WITHOUT)"'

# Says what the programs lack: when libraries have come, they are compiled again.
ifneq ($(if $(wildcard $(B)/without),$(file <$(B)/without)),$(WITHOUT))
.PHONY: $(B)/without
endif
$(B)/without:
	@mkdir -p $(@D) && echo "$(WITHOUT)" >$@
$(CLI_OBJECTS) $(B)/cli/main.o $(BENCH_OBJECTS): $(B)/without

$(B)/%.o: src/%.c Makefile
	@mkdir -p $(@D)
	$(call say,CC)$(COMPILE) -c $< -o $@

$(B)/bench/program/%.o: bench/program/%.c Makefile
	@mkdir -p $(@D)
	$(call say,CC)$(COMPILE) -c $< -o $@

$(SHARED): $(OBJECTS)
	$(call say,LD)$(LINK) -shared -Wl,-soname,$(SONAME) $(if $(SAN),,-Wl,-z,defs) $^ $(LIBS) -o $@
	@ln -sf $(@F) $(B)/$(SONAME)
	@ln -sf $(SONAME) $(B)/libdescant.so

# One object in the archive, in which everything that is hidden has become local.
$(B)/libdescant.a: $(OBJECTS)
	$(call say,LD)$(LD) -r $^ -o $(B)/libdescant.o
	@$(OBJCOPY) --localize-hidden $(B)/libdescant.o
	@rm -f $@
	@$(AR) rcs $@ $(B)/libdescant.o

$(B)/descant-mpi-%.so: src/link/abi/mpi_abi.c src/link/pmi.c src/link/pmi.h \
		src/link/link.h src/link/mpi.h Makefile
	@mkdir -p $(@D)
	$(call say,CC)OMPI_CC=$(CC) MPICH_CC=$(CC) $(MPICC_$*) $(filter-out -MMD -MP -Wcast-qual,$(BASIC)) -O2 \
		-Wl,-z,nodelete -shared $(filter %.c,$^) -o $@

$(B)/descant-tls.so: src/link/abi/tls_openssl.c src/link/tls.h src/link/secret.h Makefile
	@mkdir -p $(@D)
	$(call say,CC)$(filter-out -MMD -MP,$(COMPILE)) $(shell $(PKG_CONFIG) --cflags libssl) \
		-Wl,-z,nodelete $(LDFLAGS) -shared $< $(shell $(PKG_CONFIG) --libs libssl libcrypto) -o $@

$(B)/descant: $(PROGRAM_OBJECTS)
$(B)/descant-bench: $(BENCH_OBJECTS) $(addprefix $(B)/cli/,program.o settings.o)
$(B)/descant $(B)/descant-bench: $(TRAIN_OBJECTS) $(OBJECTS)
	$(call say,LD)$(LINK) $^ $(TRAIN_LIBS) $(LIBS) -o $@

# Half of what building costs is the optimizer at work on programs that wait for others; these
# compute themselves.
COMPUTING := $(addprefix $(B)/tests/,faults $(addprefix test_,convergence fabric ledger loops rules scale tls vector))
$(B)/tests/%: TEST_FLAGS := -O0
$(COMPUTING): TEST_FLAGS :=

# Of the archives each takes the files that it uses, and none of those whose sources it includes to
# break their rules.
INSIDE := $(B)/inside.a
PARTS := $(HARNESS) $(INSIDE)
$(B)/tests/%: tests/%.c $(PARTS) Makefile
	@mkdir -p $(@D)
	$(call say,CC)$(COMPILE) $(TEST_FLAGS) $(CHECK_FLAGS) -Itests $(CALLED_FLAGS) $< $(BESIDE) \
		-Wl,--start-group $(PARTS) -Wl,--end-group $(CHECK_LIBS) $(CALLED_LIBS) $(LIBS) $(LDFLAGS) -o $@

$(HARNESS): $(HARNESS_OBJECTS)
$(INSIDE): $(OBJECTS)
$(HARNESS) $(INSIDE):
	@rm -f $@
	@$(AR) rcs $@ $^

$(B)/harness/program.o: COMPILE += -Ibench/program

$(B)/harness/%.o: tests/harness/%.c Makefile
	@mkdir -p $(@D)
	$(call say,CC)$(COMPILE) $(CHECK_FLAGS) -Itests -c $< -o $@

$(B)/harness/%.o: tests/%.c Makefile
	@mkdir -p $(@D)
	$(call say,CC)$(COMPILE) $(CHECK_FLAGS) -Itests -c $< -o $@

$(addprefix $(B)/tests/test_,hosts run hub): $(HOSTS_OBJECTS) $(HOSTS_NEED)
$(addprefix $(B)/tests/test_,hosts run hub): BESIDE := $(HOSTS_OBJECTS) $(HOSTS_NEED)
$(B)/tests/test_comings $(B)/tests/test_comings_agree: $(B)/tests/faults
$(addprefix $(B)/tests/test_,mpi mpi_errors mpi_jobs agree_jobs deal_jobs fed_jobs link_contract bsp_net told): | $(MODULES)
$(TLS_TESTS:%.c=$(B)/%) $(B)/bench/tls: | $(filter %-tls.so,$(MODULES))
# These make certificates, count OpenSSL's memory, and are programs of another kind.
$(TLS_TESTS:%.c=$(B)/%): LDFLAGS += $(shell $(PKG_CONFIG) --libs libssl libcrypto)
# Has some of MPI's functions, for the modules to find.
$(B)/tests/test_mpi_errors: LDFLAGS += -rdynamic
$(B)/tests/test_segment_python $(B)/tests/test_python $(B)/tests/test_bsp: | $(SHARED)
$(B)/tests/test_bsp: | $(B)/examples/bsp/logistic
$(B)/tests/test_cli: | $(PROGRAM) $(BENCH)

# These call the programs as functions.
CALLED := $(B)/called.a
$(CALLED): $(CLI_OBJECTS) $(filter-out %/main.o,$(BENCH_OBJECTS)) $(TRAIN_OBJECTS)
	@rm -f $@
	@$(AR) rcs $@ $^
CALLERS := $(addprefix $(B)/tests/test_,cli secret) $(TRAIN_TESTS:%.c=$(B)/%)
$(CALLERS): $(CALLED)
$(CALLERS): PARTS += $(CALLED)
$(CALLERS): CALLED_LIBS = $(TRAIN_LIBS)
$(CALLERS): CALLED_FLAGS := -Ibench/program

# Looks at OpenBLAS itself.
$(B)/tests/test_learning: LDFLAGS += $(shell $(PKG_CONFIG) --libs openblas)

# Here disks are slow, forks fail and machines have many cores.
$(B)/tests/test_training_faults: LDFLAGS += \
	-Wl,--wrap=fsync,--wrap=write,--wrap=fork,--wrap=machine_cores \
	-Wl,--wrap=evaluate,--wrap=model_gradient

# Here steps may take longer (tests/harness/steps.h).
$(addprefix $(B)/tests/test_,piped told train_shards): LDFLAGS += -Wl,--wrap=model_gradient
$(B)/tests/test_told: LDFLAGS += -Wl,--wrap=train_log_last,--wrap=descant_part

# Random bytes into the readers, until stopped: make fuzz && build/fuzz_data -max_total_time=60
build/fuzz_data: tests/fuzz_data.c $(wildcard src/data/*.[ch] src/base/*.[ch]) Makefile
	@mkdir -p $(@D)
	clang $(filter-out -MMD -MP,$(BASIC)) -O1 -fsanitize=fuzzer,address,undefined $< \
		$(filter %.c,$(wildcard src/data/*.c src/base/*.c)) $(TRAIN_LIBS) $(LIBS) -o $@

# The same for run logs: make fuzz && build/fuzz_report -max_total_time=60 -max_len=65536 build/fuzz_logs
REPORT_FILES := $(wildcard src/report/*.c)
build/fuzz_report: tests/fuzz_report.c $(REPORT_FILES) $(PAGE) $(wildcard src/report/report.h src/base/*.[ch]) Makefile
	@mkdir -p $(@D)
	clang $(filter-out -MMD -MP,$(BASIC)) -I$(B)/report -O1 -fsanitize=fuzzer,address,undefined $< $(REPORT_FILES) \
		$(wildcard src/base/*.c) $(TRAIN_LIBS) $(LIBS) -o $@

# The same for what ranks hear from a rank that lies, over a link that is fixed (ranks), or on which
# ranks come and go (liars): make fuzz && build/fuzz_ranks -max_total_time=60
FUZZ_ranks := tests/fuzz_ranks.c tests/hostile.c tests/lies.c tests/mpi_loopback.c
FUZZ_liars := tests/fuzz_liars.c tests/liars.c tests/lies.c $(wildcard tests/ranks_world*.c)
build/fuzz_ranks build/fuzz_liars: build/fuzz_%: $(FUZZ_ranks) $(FUZZ_liars) $(wildcard tests/*.h) \
		$(SOURCES) $(wildcard src/*/*.h) Makefile
	@mkdir -p $(@D)
	$(foreach k,$(KERNEL_SETS),clang $(filter-out -MMD -MP,$(BASIC)) -O2 $(FLAGS_$k) -fsanitize=address \
		-DKERNELS=kernels_$k -c $(KERNEL_SOURCE) -o build/fuzz_kernels_$*_$k.o &&) \
	clang $(filter-out -MMD -MP,$(BASIC)) -O1 -fsanitize=fuzzer,address,undefined $(CHECK_FLAGS) -Itests \
		$(FUZZ_$*) $(SOURCES) $(KERNEL_SETS:%=build/fuzz_kernels_$*_%.o) $(LIBS) -o $@

# The same for a rank over TCP, whose sockets are made up; an empty folder gets scripts to begin with.
# make fuzz && mkdir -p build/fuzz_scripts && build/fuzz_tcp -entropic=0 -max_total_time=60 build/fuzz_scripts
SOCKETS := -Wl,--wrap=epoll_create1,--wrap=epoll_ctl,--wrap=epoll_wait,--wrap=timerfd_create \
	-Wl,--wrap=timerfd_settime,--wrap=eventfd,--wrap=socket,--wrap=bind,--wrap=listen,--wrap=getsockname \
	-Wl,--wrap=getpeername,--wrap=setsockopt,--wrap=getsockopt,--wrap=accept4,--wrap=connect,--wrap=shutdown \
	-Wl,--wrap=close,--wrap=read,--wrap=write,--wrap=readv,--wrap=sendmsg,--wrap=ppoll \
	-Wl,--wrap=getaddrinfo,--wrap=freeaddrinfo,--wrap=clock_now_ns
FUZZ_tcp := tests/fuzz_tcp.c tests/tcp_bytes.c tests/sockets.c
build/fuzz_tcp: $(FUZZ_tcp) $(wildcard tests/*.h src/link/*.[ch] src/base/*.[ch]) Makefile
	@mkdir -p $(@D)
	$(call say,CC)$(foreach f,$(FUZZ_tcp) $(wildcard src/base/*.c),clang $(filter-out -MMD -MP,$(BASIC)) -O1 -Itests \
		-fsanitize=address,undefined -c $f -o build/fuzz_tcp_$(basename $(notdir $f)).o &&) \
	clang $(filter-out -MMD -MP,$(BASIC)) -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-coverage=trace-cmp \
		$(patsubst %,src/link/%.c,tcp tcp_meet tcp_star tcp_peers tcp_turn tcp_options tcp_socket tcp_pass tcp_stream tcp_in tcp_out tcp_ended tls module secret) \
		$(patsubst %.c,build/fuzz_tcp_%.o,$(notdir $(FUZZ_tcp) $(wildcard src/base/*.c))) $(SOCKETS) $(LIBS) -o $@
$(B)/tests/test_tcp_bytes: LDFLAGS += $(SOCKETS)

build/fuzz_logs: tests/fuzz_seeds $(PROGRAM)
	tests/fuzz_seeds $(PROGRAM) $@

$(B)/examples/%: examples/%.c $(B)/libdescant.a Makefile
	@mkdir -p $(@D)
	$(call say,CC)$(COMPILE) $< $(B)/libdescant.a $(LIBS) $(LDFLAGS) -o $@

$(B)/examples/%_cc: examples/%.cc $(B)/libdescant.a Makefile
	@mkdir -p $(@D)
	$(call say,CXX)$(CXX) -std=c++11 -O2 -Wall -Wextra $(if $(WERROR),-Werror) -Iinclude $(SANITIZE) -pthread \
		$< $(B)/libdescant.a $(LIBS) $(LDFLAGS) -o $@

$(B)/bench/%: bench/%.c $(OBJECTS) Makefile
	@mkdir -p $(@D)
	$(call say,CC)$(COMPILE) -Itests $< $(filter %.o,$^) $(LIBS) $(LDFLAGS) -o $@

$(B)/bench/sim: $(B)/harness/simulation.o

setup:
	@tools/setup

test: setup
	@$(MAKE) --no-print-directory all tests
	@BUILD=$(B) tests/run $(if $(SAN),,tests/cluster/run tests/cluster/ranks) $(TESTS)

# What pick() leaves out (tests/harness/suite.h), too; under a sanitizer: make test-whole SAN=thread
test-whole: export DESCANT_TESTS := whole
test-whole: export CK_TIMEOUT_MULTIPLIER := 10
test-whole: test

# The scripts of examples/slurm under a Slurm of its own, as root.
test-slurm: setup
	@tools/setup slurm
	@$(MAKE) --no-print-directory all
	@BUILD=$(B) tests/run tests/cluster/slurm

# The Python package with PyTorch, in two versions: one in a venv of the build folder, and Debian's
# where apt has it. pip's settings tell where from; PyPI's own build for Linux brings CUDA along,
# download.pytorch.org/whl/cpu has one without.
TORCH := torch==2.13.0
FRAMEWORKS := transformers accelerate lightning
DEBIAN_PYTHON := /usr/bin/python3
$(B)/venv/torch:
	@tools/setup venv
	@python3 -m venv $(@D) && $(@D)/bin/pip install -q $(TORCH) numpy && touch $@

# TORCH again, or pip might fetch another
$(B)/venv/frameworks: $(B)/venv/torch
	@$(@D)/bin/pip install -q $(TORCH) $(FRAMEWORKS) && touch $@

test-torch: setup $(B)/venv/frameworks
	@$(MAKE) --no-print-directory all $(B)/tests/test_python
	@tools/setup torch || echo "test-torch: without Debian's PyTorch"
	@pythons=$(B)/venv/bin/python; \
	$(DEBIAN_PYTHON) -c 'import torch' 2>/dev/null && pythons="$$pythons $(DEBIAN_PYTHON)"; \
	BUILD=$(B) DESCANT_PYTHON=$$pythons tests/run $(B)/tests/test_python

# README's chart, as root: 20 minutes on a machine that does nothing else.
chart: setup $(B)/venv/torch
	@$(MAKE) --no-print-directory all
	@PYTHON=$(abspath $(B))/venv/bin/python BUILD=$(B) bench/torch.sh chart >$(B)/speed.jsonl
	@python3 bench/speed_chart.py $(B)/speed.jsonl >docs/speed.svg

# tests/cluster/ranks starts an example
tests: $(TESTS) $(if $(SAN),,$(B)/examples/hello)

# What another compiler says of the tests, too, without programs: make warnings CC=clang WERROR=1
warnings: all
	@printf '%s\n' $(filter-out tests/fuzz_%,$(wildcard tests/*.c tests/harness/*.c)) | xargs -P $$(nproc) -n 8 \
		$(filter-out -MMD -MP,$(COMPILE)) $(CHECK_FLAGS) -Itests -Ibench/program -fsyntax-only

# Seeded schedules of deaths, cuts, pauses and comings (tests/faults.c): make faults SEEDS=1-3000. A
# million of them take an hour of two cores.
SEEDS := 1-10000
faults-million: SEEDS := 1-1000000
faults-million: DEAL_SEEDS := 1-100000
DEAL_SEEDS := 1-3000
faults faults-million: $(B)/tests/faults
	@printf '%s\n' "$(SEEDS)" "$(SEEDS) -q" "$(SEEDS) -q -f" "$(SEEDS) -s" "$(DEAL_SEEDS) -d" | \
		xargs -P $$(nproc) -L 1 $(B)/tests/faults

# One rule of the protocol broken at a time: which of those worlds fail, or which suite (tests/mutations).
mutations:
	@tests/mutations $(if $(filter command line,$(origin SEEDS)),$(SEEDS),1-3000)

# Every interleaving of the protocols that tests/models describes, by spin.
models:
	@tools/setup models
	@tests/models/run

fuzz:
	@tools/setup fuzz
	@$(MAKE) --no-print-directory build/fuzz_data build/fuzz_report build/fuzz_ranks build/fuzz_liars build/fuzz_tcp \
		build/fuzz_logs

# A minute of random kills for each of four plans.
soak: $(B)/tests/test_processes
	CK_RUN_CASE=soak DESCANT_SOAK_S=60 $<

bench: all $(BENCHES)
	@set -e; for program in $(BENCHES); do echo "== $$program"; $$program; done

# The table of docs/quality.md; the better part of an hour, and it may be stopped and gone on with.
bench-quality: setup
	@$(MAKE) --no-print-directory all
	@BUILD=$(B) bench/quality.sh

# What the plan bsp costs beside allreduce; the same holds.
bench-quality-bsp: setup
	@$(MAKE) --no-print-directory all
	@BUILD=$(B) bench/quality_bsp.sh

# The defaults of linear and fm beside Vowpal Wabbit's, from PyPI; PEERS_FILES are more sets.
bench-peers: setup
	@$(MAKE) --no-print-directory all
	@BUILD=$(B) bench/peers/clicks.sh $(PEERS_FILES)

# The table of docs/cluster.md: shaped links between hosts made of namespaces, as root.
bench-cluster: setup
	@$(MAKE) --no-print-directory all
	@BUILD=$(B) bench/cluster.sh

examples: $(EXAMPLES)

demo: setup
	@$(MAKE) --no-print-directory all
	@BUILD=$(B) examples/demo.sh

# The library alone: a logistic regression of 100 lines under six plans.
demo-plans: setup
	@$(MAKE) --no-print-directory $(B)/examples/logistic
	@BUILD=$(B) examples/plans.sh

format:
	clang-format -i $(wildcard include/*.h src/*/*.[ch] tests/*.[ch] tests/harness/*.[ch] \
		bench/*.[ch] bench/program/*.[ch] examples/*.[ch])

SHARE := $(DESTDIR)$(PREFIX)/share
fill = sed -e 's|@VERSION@|$(VERSION)|' \
	-e 's|@SONAME@|$(SONAME)|' -e 's|@TO_PREFIX@|$(shell realpath -m --relative-to=$(LIBDIR) $(PREFIX))|'
install: all
	install -d $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(PREFIX)/bin \
		$(DESTDIR)$(LIBDIR)/cmake/descant $(SHARE)/man/man1 $(SHARE)/man/man3 \
		$(SHARE)/bash-completion/completions $(SHARE)/zsh/site-functions
	install -m 644 include/descant.h include/descant_ml.h $(DESTDIR)$(PREFIX)/include/
	install -m 755 $(SHARED) $(DESTDIR)$(LIBDIR)/
	ln -sf libdescant.so.$(VERSION) $(DESTDIR)$(LIBDIR)/$(SONAME)
	ln -sf $(SONAME) $(DESTDIR)$(LIBDIR)/libdescant.so
	install -m 644 $(B)/libdescant.a $(DESTDIR)$(LIBDIR)/
	$(fill) descant.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/descant.pc
	for f in descant-config descant-config-version; do \
		$(fill) $$f.cmake.in > $(DESTDIR)$(LIBDIR)/cmake/descant/$$f.cmake; done
	$(if $(PROGRAM),install -m 755 $(PROGRAM) $(BENCH) $(DESTDIR)$(PREFIX)/bin/)
	$(if $(MODULES),install -d $(DESTDIR)$(LIBDIR)/descant)
	$(if $(MODULES),install -m 755 $(MODULES) $(DESTDIR)$(LIBDIR)/descant/)
	install -m 644 docs/descant.1 $(SHARE)/man/man1/
	install -m 644 $(wildcard docs/man3/*.3) $(SHARE)/man/man3/
	install -m 644 docs/completion/descant.bash $(SHARE)/bash-completion/completions/descant
	install -m 644 docs/completion/_descant $(SHARE)/zsh/site-functions/
	@# the loader finds it from now on; an image, or a folder of one's own, has none to tell
	@if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" -eq 0 ]; then PATH=$$PATH:/sbin:/usr/sbin ldconfig; fi

uninstall:
	rm -rf $(DESTDIR)$(LIBDIR)/cmake/descant
	rm -f $(DESTDIR)$(PREFIX)/include/descant.h $(DESTDIR)$(PREFIX)/include/descant_ml.h \
		$(DESTDIR)$(LIBDIR)/libdescant.a \
		$(DESTDIR)$(LIBDIR)/libdescant.so $(DESTDIR)$(LIBDIR)/$(SONAME) \
		$(DESTDIR)$(LIBDIR)/libdescant.so.$(VERSION) $(DESTDIR)$(LIBDIR)/pkgconfig/descant.pc \
		$(addprefix $(DESTDIR)$(LIBDIR)/descant/descant-,mpi-*.so tls.so) \
		$(addprefix $(DESTDIR)$(PREFIX)/bin/,descant descant-bench) $(SHARE)/man/man1/descant.1 \
		$(patsubst docs/man3/%,$(SHARE)/man/man3/%,$(wildcard docs/man3/*.3)) \
		$(SHARE)/bash-completion/completions/descant $(SHARE)/zsh/site-functions/_descant

clean:
	rm -rf build

-include $(wildcard $(B)/*/*.d $(B)/*/*/*.d)
