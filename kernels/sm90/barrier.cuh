// SPDX-License-Identifier: Apache-2.0
// mbarrier (barriers with transaction counts), clusters, named barriers, the fence of the async proxy, setmaxnreg.
// Facts: PTX ISA 9.0, "mbarrier", "barrier.cluster", "mapa", "st.async", "membar/fence" (async proxy), "setmaxnreg".
#pragma once

#include "cuda/common.cuh"

namespace checkop::kernels::sm90 {

/// The shared-memory address that PTX instructions take.
__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// An mbarrier is 8 bytes of shared memory. Its phase ends when `count` threads have arrived and all announced bytes
// have been delivered; then the next phase begins.
constexpr int kBarrierBytes = 8;

__device__ inline void init_barrier(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
/// Call after the last init_barrier() and before any use of the barriers, including use by other blocks of the cluster
/// or by TMA.
__device__ inline void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives and announces `bytes` that TMA will deliver. The zeros that fill the box outside the matrix count too.
__device__ inline void arrive_expect_tx(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/// Arrives at the barrier at this address in block `rank` of the cluster. Relaxed, because the arrival only says
/// that wgmma has read its operands, which wgmma_wait_group() has ensured: no ordinary access has to be published, and
/// a release would wait for all of global memory.
__device__ inline void arrive_remote(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [remote];\n}"
      :
      : "r"(barrier), "r"(rank)
      : "memory");
}

/// Stores two values at this address in block `rank` of the cluster, without waiting; counts 8 bytes of the barrier at
/// this address there. `to` is a multiple of 8.
__device__ inline void store_remote(uint32_t to, float a, float b, uint32_t barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 remote_to, remote_barrier;\n"
      "mapa.shared::cluster.u32 remote_to, %0, %4;\n"
      "mapa.shared::cluster.u32 remote_barrier, %1, %4;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [remote_to], {%2, %3}, [remote_barrier];\n}"
      :
      : "r"(to), "r"(barrier), "f"(a), "f"(b), "r"(rank)
      : "memory");
}

/// Waits for the end of the phase of this parity; phases are 0, 1, 0, ... A new barrier counts as if a phase of parity
/// 1 had completed.
__device__ inline void wait(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n.reg .pred ended;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
        "selp.u32 %0, 1, 0, ended;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
}

__device__ inline uint32_t rank_in_cluster() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ inline int blocks_in_cluster() {
  uint32_t blocks;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
  return static_cast<int>(blocks);
}
/// Waits for all threads of all blocks of the cluster. Relaxed: publishes only what fence_barrier_init() has published.
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;" ::: "memory");
}
/// Waits at named barrier `id` (1 .. 15) of the block until `threads` threads have arrived; 0 is __syncthreads().
__device__ inline void named_barrier_sync(int id, int threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Arrives at a named barrier without waiting.
__device__ inline void named_barrier_arrive(int id, int threads) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Orders this thread's ordinary accesses to shared memory before later accesses by TMA or wgmma.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Gives up registers (dec) or takes more (inc), so that each thread of this warpgroup has `count`. All warps of the
/// warpgroup must call it.
template <int count>
__device__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

}  // namespace checkop::kernels::sm90
