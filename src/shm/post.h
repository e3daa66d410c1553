/* SPDX-License-Identifier: MIT */
/* Parcels between rank 0 and the others of a machine. */
#ifndef SHM_POST_H
#define SHM_POST_H

#include "fabric/fabric.h"

struct shm_post;

extern const struct fabric_post shm_post;

#endif
