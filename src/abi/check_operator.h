/* SPDX-License-Identifier: Apache-2.0
 * check_operator.h: the C ABI between check_operator and a kernel plugin. C11, no dependency.
 *
 * A plugin is a shared library that exports check_operator_plugin(). The host owns all memory and the stream; a kernel
 * enqueues its work on `stream` and returns. No exception may cross. Structs grow only at their end: read `struct_size`
 * before using a member that was added after version 1. */
#ifndef CHECK_OPERATOR_H
#define CHECK_OPERATOR_H

#include <stddef.h>
#include <stdint.h>

#define CHECKOP_ABI_VERSION 1u

#if defined(__cplusplus)
#define CHECKOP_EXPORT extern "C" __attribute__((visibility("default")))
#else
#define CHECKOP_EXPORT __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum {
  CHECKOP_F64,
  CHECKOP_F32,
  CHECKOP_F16,
  CHECKOP_BF16,
  CHECKOP_I64,
  CHECKOP_I32,
  CHECKOP_U8
};                                  /* checkop_tensor.dtype */
enum { CHECKOP_CPU, CHECKOP_CUDA }; /* checkop_kernel.device */

typedef struct checkop_tensor {
  void* data;             /* device memory for CUDA kernels; NULL for an optional tensor that is absent */
  int32_t dtype;          /* CHECKOP_F64 ... */
  int32_t rank;           /* 0 for a scalar and for an absent tensor */
  const int64_t* shape;   /* [rank] */
  const int64_t* strides; /* [rank], in elements; a kernel heeds them or refuses what it does not expect */
} checkop_tensor;

typedef struct checkop_attr {
  const char* name;
  double value;
} checkop_attr;

/* How the ranks of a tensor-parallel operator talk on the host, whether they are threads of one process or processes;
 * each has its own. All ranks make the same calls in the same order. A call returns 0, or something else once a rank
 * has returned from its launch, has stayed away longer than the host waits, or calls with another size: no rank can
 * hang another. From then on every call fails; return CHECKOP_FAILED with the words of error(). */
typedef struct checkop_host_comm {
  uint32_t struct_size;
  int32_t rank, world_size;
  /* receive[world_size * bytes] becomes send[bytes] of every rank, in the order of ranks. */
  int (*all_gather)(struct checkop_host_comm*, const void* send, void* receive, size_t bytes);
  int (*barrier)(struct checkop_host_comm*);
  const char* (*error)(struct checkop_host_comm*); /* why a call failed; "" before one did */
} checkop_host_comm;

typedef struct checkop_call {
  uint32_t struct_size;
  int32_t n_inputs, n_outputs, n_attrs;
  const checkop_tensor* inputs;  /* in the order that `check_operator show OP` prints, optional ones included */
  const checkop_tensor* outputs; /* likewise */
  const checkop_attr* attrs;     /* likewise */
  void* workspace;               /* at least what workspace_bytes() asked for, 256-byte aligned; content undefined */
  size_t workspace_bytes;
  void* stream;             /* cudaStream_t; NULL on the CPU */
  int32_t rank, world_size; /* tensor-parallel operators; 0 and 1 otherwise */
  /* On the CPU checkop_host_comm*, on CUDA devices ncclComm_t, or NULL for one rank; NULL for other operators. NCCL's
   * does not block: a call on it may return ncclInProgress, and ncclCommGetAsyncError tells when it is done. When a
   * rank fails or stays away, host_comm's error() tells, and two seconds later the host aborts this one. */
  void* comm;
  char* message; /* out, [message_bytes], NUL-terminated: why not OK, or which variant ran */
  size_t message_bytes;
  const struct checkop_kernel* kernel; /* the entry that is launched: one function can serve many */
  /* Tensor-parallel operators: the tensors hold [shard_begin, shard_end) of the dimension of extent shard_total that
   * ranks share. 0 otherwise. */
  int64_t shard_begin, shard_end, shard_total;
  /* Tensor-parallel operators, on every device: for ranks to agree on what each was given before any collective that
   * would hang when they differ. On the CPU it is comm. NULL for other operators. */
  checkop_host_comm* host_comm;
} checkop_call; /* it and what it points to end when launch returns; the buffers and the stream live on */

typedef enum {
  CHECKOP_OK = 0,
  CHECKOP_UNSUPPORTED = 1, /* this kernel does not do these shapes, dtypes or attributes; nothing was touched */
  CHECKOP_FAILED = 2       /* bad input such as an id out of range, or a launch error; `message` says which */
} checkop_status;

typedef struct checkop_kernel {
  uint32_t struct_size;
  const char* name;                               /* the candidate: "native", "cuda", "cublas", ... */
  const char* op;                                 /* "logp", ... */
  const char* pass;                               /* "forward" or "backward" */
  int32_t device;                                 /* CHECKOP_CPU or CHECKOP_CUDA */
  int32_t min_arch;                               /* compute capability times 10, inclusive: 80, 90; 0 for no limit */
  int32_t max_arch;                               /* likewise */
  size_t (*workspace_bytes)(const checkop_call*); /* NULL when none is needed; tensors' data may be NULL in this call */
  checkop_status (*launch)(const checkop_call*);
} checkop_kernel;

typedef struct checkop_plugin {
  uint32_t abi_version; /* CHECKOP_ABI_VERSION that the plugin was compiled with */
  int32_t n_kernels;
  const checkop_kernel* kernels;
} checkop_plugin;

/* The one symbol of a plugin. Its result lives as long as the library is loaded. */
CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void);

#ifdef __cplusplus
}
#endif
#endif
