// SPDX-License-Identifier: Apache-2.0
// kl_full / cuda: one block per row; a pass over both rows for their softmax, then one for the divergences, and one for
// the gradient, all in fp32; portable CUDA. kl_full / native has the formulas.
//   a = ln S, b = ln T: log-softmax of student / temperature and teacher / temperature,  q = b for beta 0 and 1,
//   otherwise ln(beta T + (1-beta) S)
//   forward   loss[row]: for beta 0 sum_v T (b - a), for beta 1 sum_v S (a - b), otherwise
//             sum_v beta T (b - q) + (1-beta) S (a - q)
//   backward  dstudent[row,v]: for beta 0 g (S - T) / temperature, otherwise g w S (a - q - sum_v S (a - q)) /
//             temperature with w = 1 for beta 1, else 1 - beta
//   student, teacher, dstudent: [..., vocab] f32|f16|bf16, contiguous    mask: [...] u8 or none
//   loss, grad_loss: [...] f32
//   Where the mask is 0: loss and gradient are 0, and no logit is read. A probability of 0 adds nothing.
//   Limits: rows < 2^31, vocab 1 to 2^30.   No workspace.
//   Expected error: chains of about vocab/1024 + 20 fp32 additions, expf and logf within 2 ulp, one output rounding.
//   A row's bits depend only on its own values: see cuda/softmax.cuh.
#include "cuda/softmax.cuh"

namespace checkop::kernels {
namespace {

struct Temperature {
  static constexpr bool keeps_infinity = true;
  float reciprocal;
  __device__ float apply(float x) const { return x * reciprocal; }
};

/// Which divergence; `between`: from the mixture of student and teacher.
enum class Beta { zero, one, between };

template <typename T>
struct Params {
  const T *student, *teacher;
  const uint8_t* mask;  ///< nullptr for none
  int64_t vocab;
  float beta;
  Temperature temperature;
};

/// Logarithms of the probabilities of a row, from what reduce_row() found.
struct LogSoftmax {
  float shift, log_sum;

  __device__ explicit LogSoftmax(const Partial& total) : shift(exp_shift(total.max)), log_sum(logf(total.sum)) {}
  __device__ float operator()(float z) const { return (z - shift) - log_sum; }
};

/// p (log_p - log_q); 0 where p is, although the difference may be infinite.
__device__ float term(float log_p, float log_q) {
  const float p = expf(log_p);
  return p == 0.0f ? 0.0f : p * (log_p - log_q);
}

/// A row of student and teacher; the same in all threads of the block.
template <typename T, Beta kind>
class KlRow {
 public:
  static constexpr int kColumns = kGroupColumns<T>;

  __device__ KlRow(const Params<T>& params, int64_t row, StepRing& ring)
      : params_(params),
        student_(params.student + row * params.vocab),
        teacher_(params.teacher + row * params.vocab),
        a_(Partial{}),
        b_(Partial{}) {
    const auto reduce = [&](const auto& student, const auto& teacher) {
      a_ = LogSoftmax(reduce_row(ring, student, params.temperature, false, &teacher));
      __syncthreads();
      b_ = LogSoftmax(reduce_row(ring, teacher, params.temperature, true));
    };
    with_steps(params.vocab, reduce, student_, teacher_);
  }

  /// Calls body(first column, a, b) for each group of columns of the thread, in ascending order; beyond the row's end
  /// a and b are -inf.
  template <typename Body>
  __device__ void for_groups(Body&& body) const {
    const int64_t n_groups = ceil_div(params_.vocab, kColumns);
    for (int64_t group = threadIdx.x; group < n_groups; group += blockDim.x) {
      float a[kColumns], b[kColumns];
      load(student_, group, a_, a), load(teacher_, group, b_, b);
      body(group * kColumns, a, b);
    }
  }

  /// ln Q, Q the distribution that the student is compared with.
  __device__ float log_q(float a, float b) const {
    if constexpr (kind != Beta::between) return b;
    return logf(params_.beta * expf(b) + (1.0f - params_.beta) * expf(a));
  }

  /// KL(S|Q), in every thread.
  __device__ float of_student() const {
    return sum([&](float a, float b) { return term(a, log_q(a, b)); });
  }
  __device__ float loss() const {
    if constexpr (kind == Beta::one) return of_student();
    if constexpr (kind == Beta::zero) return sum([](float a, float b) { return term(b, a); });
    return sum([&](float a, float b) {
      const float q = log_q(a, b);
      return params_.beta * term(b, q) + (1.0f - params_.beta) * term(a, q);
    });
  }

 private:
  __device__ void load(const T* __restrict__ row, int64_t group, const LogSoftmax& log, float (&to)[kColumns]) const {
    const int64_t first = group * kColumns;
    const bool is_whole = is_aligned(row) && first + kColumns <= params_.vocab;
    const auto elements = is_whole ? Group<T>{*reinterpret_cast<const uint4*>(row + first)}
                                   : load_ragged<T>(row, static_cast<int>(first), static_cast<int>(params_.vocab));
    elements.unpack(to);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) to[i] = log(params_.temperature.apply(to[i]));
  }

  /// The sum of f(a, b) over the row, in every thread. Once per f: the shared memory serves one reduction.
  template <typename F>
  __device__ float sum(F&& f) const {
    __shared__ float shared[kWarp];
    float mine = 0.0f;
    for_groups([&](int64_t, const float(&a)[kColumns], const float(&b)[kColumns]) {
      float of_group = 0.0f;  // two levels: the chain is one group, then the number of groups
#pragma unroll
      for (int i = 0; i < kColumns; ++i) of_group += f(a[i], b[i]);
      mine += of_group;
    });
    return block_sum(mine, shared);
  }

  const Params<T>& params_;
  const T* __restrict__ student_;
  const T* __restrict__ teacher_;
  LogSoftmax a_, b_;
};

template <typename T, Beta kind>
__global__ __launch_bounds__(kMaxThreads, kBlocksPerSM) void kl_forward(Params<T> params, float* __restrict__ loss,
                                                                        int slots) {
  const int64_t row = blockIdx.x;
  if (params.mask != nullptr && params.mask[row] == 0) {  // the same for the whole block
    if (threadIdx.x == 0) loss[row] = 0.0f;
    return;
  }
  StepRing ring(slots);
  const float result = KlRow<T, kind>(params, row, ring).loss();
  if (threadIdx.x == 0) loss[row] = result;
}

template <typename T, Beta kind>
__global__ __launch_bounds__(kMaxBackwardThreads) void kl_backward(Params<T> params,
                                                                   const float* __restrict__ grad_loss,
                                                                   T* __restrict__ dstudent, int slots) {
  const int64_t row = blockIdx.x;
  T* __restrict__ to = dstudent + row * params.vocab;
  if (params.mask != nullptr && params.mask[row] == 0) return write_zeros(to, params.vocab);  // the whole block
  StepRing ring(slots);
  const KlRow<T, kind> of(params, row, ring);
  const float scale = grad_loss[row] * params.temperature.reciprocal;
  const float mean = kind == Beta::zero ? 0.0f : of.of_student();
  const float weight = kind == Beta::between ? 1.0f - params.beta : 1.0f;
  constexpr int kColumns = kGroupColumns<T>;
  const int64_t n_whole = is_aligned(to) ? params.vocab / kColumns * kColumns : 0;
  of.for_groups([&](int64_t first, const float(&a)[kColumns], const float(&b)[kColumns]) {
    float gradient[kColumns];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const float s = expf(a[i]);
      if constexpr (kind == Beta::zero) {
        gradient[i] = scale * (s - expf(b[i]));
      } else {
        gradient[i] = s == 0.0f ? 0.0f : scale * weight * s * ((a[i] - of.log_q(a[i], b[i])) - mean);
      }
    }
    store_group(to, first, params.vocab, first < n_whole, gradient);
  });
}

checkop_status check_call(const checkop_call* call, bool backward) {
  CallCheck check(call);
  if (check.counts(backward ? 4 : 3, 1).failed()) return check.status();
  const checkop_tensor &student = call->inputs[0], &teacher = call->inputs[1], &mask = call->inputs[2];
  if (check.rank_at_least(student, "student", 1).failed()) return check.status();
  const int32_t n_leading = student.rank - 1;
  check.float_dtype(student, "student").contiguous(student, "student");
  const auto like_student = [&](const checkop_tensor& t, const char* name) {
    check.dtype(t, name, student.dtype).shape(t, name, student, student.rank, {}).contiguous(t, name);
  };
  const auto per_row = [&](const checkop_tensor& t, const char* name, int32_t dtype) {
    check.dtype(t, name, dtype).shape(t, name, student, n_leading, {}).contiguous(t, name);
  };
  like_student(teacher, "teacher");
  if (mask.data != nullptr) per_row(mask, "mask", CHECKOP_U8);
  if (backward) {
    per_row(call->inputs[3], "grad_loss", CHECKOP_F32);
    like_student(call->outputs[0], "dstudent");
  } else {
    per_row(call->outputs[0], "loss", CHECKOP_F32);
  }
  if (check.failed()) return check.status();
  return check_rows(call, "student", leading_count(student), last_extent(student));
}

template <typename T, Beta kind>
checkop_status launch(const checkop_call* call, const Params<T>& params, int64_t rows, bool backward) {
  auto* stream = static_cast<cudaStream_t>(call->stream);
  if (backward) {
    const auto error =
        launch_rows<T>(kl_backward<T, kind>, rows, backward_threads_for(params.vocab), params.vocab, stream, params,
                       static_cast<const float*>(call->inputs[3].data), static_cast<T*>(call->outputs[0].data));
    return cuda_status(call, error, "launch kl_full backward");
  }
  const auto error = launch_rows<T>(kl_forward<T, kind>, rows, threads_for(params.vocab), params.vocab, stream, params,
                                    static_cast<float*>(call->outputs[0].data));
  return cuda_status(call, error, "launch kl_full forward");
}

checkop_status launch(const checkop_call* call, bool backward) {
  if (auto status = check_call(call, backward)) return status;
  double beta = 0, temperature = 0;
  if (auto status = read_attribute(call, "beta", beta)) return status;
  if (auto status = read_attribute(call, "temperature", temperature)) return status;
  const checkop_tensor& student = call->inputs[0];
  const int64_t rows = leading_count(student);
  if (rows == 0 || last_extent(student) == 0) return CHECKOP_OK;
  return with_float_type(student.dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    const Params<T> params{static_cast<const T*>(student.data),
                           static_cast<const T*>(call->inputs[1].data),
                           static_cast<const uint8_t*>(call->inputs[2].data),
                           last_extent(student),
                           static_cast<float>(beta),
                           {static_cast<float>(1 / temperature)}};
    if (params.beta == 0.0f) return launch<T, Beta::zero>(call, params, rows, backward);
    if (params.beta == 1.0f) return launch<T, Beta::one>(call, params, rows, backward);
    return launch<T, Beta::between>(call, params, rows, backward);
  });
}

checkop_status launch_forward(const checkop_call* call) { return launch(call, false); }
checkop_status launch_backward(const checkop_call* call) { return launch(call, true); }

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "kl_full", "forward", CHECKOP_CUDA, 80, 0, nullptr, launch_forward},
    {sizeof(checkop_kernel), "cuda", "kl_full", "backward", CHECKOP_CUDA, 80, 0, nullptr, launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
