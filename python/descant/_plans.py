# SPDX-License-Identifier: MIT
"""The presets, as `descant plans --markdown` has them; a test holds the two together."""

PLANS = {
    "none": ("when=never", "no rounds: the upper bound on speed"),
    "allreduce": ("when=every,what=gradient,every=1", "synchronous minibatch SGD, as DDP"),
    "shadow-easgd": ("when=shadow,what=elastic,alpha=0.5", "ShadowSync S-EASGD"),
    "shadow-ma": ("when=shadow,what=mean,alpha=0.5", "ShadowSync S-MA"),
    "shadow-bmuf": ("when=shadow,what=block,alpha=0.7,rate=1,momentum=0.75", "ShadowSync S-BMUF"),
    "easgd": ("when=every,what=elastic,every=8,alpha=0.5", "EASGD, FR-EASGD"),
    "ma": ("when=every,what=mean,every=8", "local SGD, FR-MA"),
    "bmuf": ("when=every,what=block,every=8,rate=1,momentum=0.5", "BMUF, SlowMo, FR-BMUF"),
    "dasgd": ("when=every,what=mean,every=4,delay=1,xi=0.25", "DaSGD"),
    "dasgd-delta": ("when=every,what=mean,merge=delta,every=4,delay=1",
                    "CoCoD, DGA: delayed averaging"),
    "diloco": ("when=every,what=block,every=100,rate=0.7,momentum=0.9,nesterov=1", "DiLoCo"),
    "diloco-delta": ("when=every,what=block,merge=delta,every=100,delay=10,rate=0.7,momentum=0.9,"
                     "nesterov=1", "overlapped DiLoCo"),
}
