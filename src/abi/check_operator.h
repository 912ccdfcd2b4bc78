/* SPDX-License-Identifier: Apache-2.0
 * check_operator.h: the C ABI between check_operator and a kernel plugin. C11, no dependency.
 *
 * A plugin is a shared library that exports check_operator_plugin(). The host owns all memory and the stream; a kernel
 * enqueues its work on `stream` and returns. No exception may leave a plugin function. Structs grow only at their end:
 * read `struct_size` before you use a member that was added after version 1. */
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

/*Lets C++ tables leave out members that later headers added, without a compiler warning. */
#if defined(__cplusplus) && __cplusplus >= 201402L
#define CHECKOP_NULL_BY_DEFAULT = nullptr
#else
#define CHECKOP_NULL_BY_DEFAULT
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
  CHECKOP_U8,
  CHECKOP_E4M3,                     /* OCP FP8 E4M3: largest number 448, no infinity, NaN 0x7f and 0xff */
  CHECKOP_E5M2,                     /* OCP FP8 E5M2, with infinities */
  CHECKOP_E8M0,                     /* a power of two, 2^(code - 127); NaN 0xff */
  CHECKOP_E2M1X2                    /* a byte of two FP4 E2M1 numbers, the first one in its lower half */
};                                  /* checkop_tensor.dtype */
enum { CHECKOP_CPU, CHECKOP_CUDA }; /* checkop_kernel.device */

/* A tensor in memory. Outputs are contiguous, or have a gap between runs of their last dimension. Inputs, upstream
 * gradients among them, may have any strides that are not negative: gaps between rows or elements, dimensions that are
 * exchanged in memory, stride 0 where all elements along a dimension are one. `data` is the first element of the view,
 * aligned to one element, not to 16 bytes. What lies between and around the elements may be NaN and is not to be read.
 * Integers that `check_operator show OP` calls int64 may come as int32 and the reverse: `dtype` counts. A kernel
 * follows all this or declines the call, best in one place: see checkop_all_contiguous(). */
typedef struct checkop_tensor {
  void* data;             /* device memory for CUDA kernels; NULL for an optional tensor that is absent */
  int32_t dtype;          /* CHECKOP_F64 ... */
  int32_t rank;           /* 0 for a scalar and for an absent tensor */
  const int64_t* shape;   /* [rank] */
  const int64_t* strides; /* [rank], in elements; a kernel must honour them or decline the call */
} checkop_tensor;

typedef struct checkop_attr {
  const char* name;
  double value;
} checkop_attr;

/* Host communicator of one rank of a tensor-parallel operator. Ranks are threads of one process or processes. All ranks
 * must make the same calls in the same order. A call returns 0 on success. It fails, with another value, when a rank
 * has returned from its launch, does not call within the host's time limit, or calls with another size: no rank can
 * hang another. After a failure every call fails; return CHECKOP_FAILED with the text of error() as the message. */
typedef struct checkop_host_comm {
  uint32_t struct_size;
  int32_t rank, world_size;
  /* Gathers send[bytes] of every rank, in rank order, into receive[world_size * bytes]. */
  int (*all_gather)(struct checkop_host_comm*, const void* send, void* receive, size_t bytes);
  int (*barrier)(struct checkop_host_comm*);
  const char* (*error)(struct checkop_host_comm*); /* why a call failed; "" before the first failure */
} checkop_host_comm;

typedef struct checkop_call {
  uint32_t struct_size;
  int32_t n_inputs, n_outputs, n_attrs;
  const checkop_tensor* inputs;  /* in the order that `check_operator show OP` prints, optional ones included */
  const checkop_tensor* outputs; /* in the same order, optional ones included */
  const checkop_attr* attrs;     /* in the order that `check_operator show OP` prints */
  void* workspace;               /* at least workspace_bytes() bytes, 256-byte aligned, contents undefined */
  size_t workspace_bytes;
  void* stream;             /* cudaStream_t; NULL on the CPU */
  int32_t rank, world_size; /* of tensor-parallel operators; otherwise 0 and 1 */
  /* Tensor-parallel operators: checkop_host_comm* on the CPU; on CUDA devices ncclComm_t, or NULL for one rank. NULL
   * for other operators. The NCCL communicator is non-blocking: a call on it may return ncclInProgress;
   * ncclCommGetAsyncError tells when the call is done. When a rank fails or does not call in time, host_comm->error()
   * tells why, and two seconds later the host aborts the NCCL communicator. */
  void* comm;
  char* message; /* out, [message_bytes], NUL-terminated: the reason if not OK, else which variant ran */
  size_t message_bytes;
  const struct checkop_kernel* kernel; /* the launched entry: several entries can share a function */
  /* Tensor-parallel operators: this rank's tensors hold the part [shard_begin, shard_end) of the dimension, of extent
   * shard_total, that is divided over the ranks. 0 for other operators. */
  int64_t shard_begin, shard_end, shard_total;
  /* Tensor-parallel operators, on every device: lets the ranks compare their arguments before a collective that would
   * hang if the arguments differ. On the CPU it equals comm. NULL for other operators. */
  checkop_host_comm* host_comm;
} checkop_call; /* valid until launch returns, as is all it points to; only buffers and stream live on */

typedef enum {
  CHECKOP_OK = 0,
  CHECKOP_UNSUPPORTED = 1, /* not for these shapes, dtypes or attributes; nothing was written */
  CHECKOP_FAILED = 2       /* bad input such as an id out of range, or a launch error; `message` says why */
} checkop_status;

/* Whether the elements lie in row-major order without gaps. */
static inline int checkop_is_contiguous(const checkop_tensor* tensor) {
  int64_t count = 1;
  int32_t d;
  for (d = tensor->rank; d-- > 0; count *= tensor->shape[d])
    if (tensor->shape[d] != 1 && tensor->strides[d] != count) return 0;
  return 1;
}

/* Whether this holds for every tensor of a call. */
static inline int checkop_all_contiguous(const checkop_call* call) {
  int32_t i;
  for (i = 0; i < call->n_inputs; ++i)
    if (!checkop_is_contiguous(&call->inputs[i])) return 0;
  for (i = 0; i < call->n_outputs; ++i)
    if (!checkop_is_contiguous(&call->outputs[i])) return 0;
  return 1;
}

typedef struct checkop_kernel {
  uint32_t struct_size;
  const char* name; /* candidate name: "native", "cuda", "cublas", ... */
  const char* op;   /* "logp", ... */
  const char* pass; /* "forward" or "backward" */
  int32_t device;   /* CHECKOP_CPU or CHECKOP_CUDA */
  int32_t min_arch; /* lowest compute capability times 10, inclusive: 80, 90; 0: no limit */
  int32_t max_arch; /* highest compute capability times 10, inclusive; 0: no limit */
  size_t (*workspace_bytes)(const checkop_call*); /* NULL: none is needed. Tensor data may be NULL in this call */
  checkop_status (*launch)(const checkop_call*);
  /* Rounding points that the kernel has by design, in the names that `check_operator show OP` prints, with spaces
   * between: "p_in_16_bit ds_in_16_bit". NULL: none. They count where the contract allows them. Added after the first
   * header of version 1; an entry whose struct_size ends before it declares none. */
  const char* recipes CHECKOP_NULL_BY_DEFAULT;
} checkop_kernel;

typedef struct checkop_plugin {
  uint32_t abi_version; /* the CHECKOP_ABI_VERSION that the plugin was compiled with */
  int32_t n_kernels;
  const checkop_kernel* kernels;
} checkop_plugin;

/* The only symbol that a plugin exports. Its result must stay valid while the library is loaded. */
CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void);

#ifdef __cplusplus
}
#endif
#endif
