// SPDX-License-Identifier: Apache-2.0
// What CPU kernels share: see native.hpp.
#include "cpu/native.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>

namespace native {
namespace {

/// A call whose inputs are contiguous: those that are not are copied.
class PackedCall {
 public:
  explicit PackedCall(const checkop_call& call) : call_(call), inputs_(call.inputs, call.inputs + call.n_inputs) {
    call_.inputs = inputs_.data();
    for (checkop_tensor& t : inputs_)
      if (!checkop_is_contiguous(&t)) pack(t, t.dtype);
  }
  PackedCall(const PackedCall&) = delete;
  PackedCall& operator=(const PackedCall&) = delete;

  const checkop_call& get() const { return call_; }
  /// Converts the input that has these data to the wanted type; false if no input has them.
  bool convert(const OtherIntegers& integers) {
    for (checkop_tensor& t : inputs_) {
      if (t.data != integers.data) continue;
      pack(t, integers.wanted);
      return true;
    }
    return false;
  }

 private:
  static size_t width_of(int32_t dtype) {
    constexpr size_t kWidths[] = {8, 4, 2, 2, 8, 4, 1, 1, 1, 1, 1};
    return kWidths[dtype];
  }

  void pack(checkop_tensor& t, int32_t dtype) {
    const auto rank = static_cast<size_t>(t.rank);
    std::vector<int64_t> strides(rank), at(rank);
    int64_t count = 1;
    for (size_t d = rank; d-- > 0; count *= t.shape[d]) strides[d] = count;
    const size_t from_width = width_of(t.dtype), to_width = width_of(dtype);
    std::vector<std::byte> copy(static_cast<size_t>(count) * to_width);
    const auto* from = static_cast<const std::byte*>(t.data);
    const int64_t run = rank == 0 ? 1 : t.shape[rank - 1], step = rank == 0 ? 1 : t.strides[rank - 1];
    int64_t there = 0;
    for (int64_t first = 0; first < count; first += run) {
      for (int64_t k = 0; k < run; ++k)
        move_element(from + (there + k * step) * static_cast<int64_t>(from_width), t.dtype,
                     &copy[static_cast<size_t>(first + k) * to_width], dtype);
      for (size_t d = rank; d-- > 0;) {
        if (d + 1 == rank) continue;
        there += t.strides[d];
        if (++at[d] < t.shape[d]) break;
        there -= t.shape[d] * t.strides[d];
        at[d] = 0;
      }
    }
    copies_.push_back(std::move(copy));
    strides_.push_back(std::move(strides));
    t.data = copies_.back().data(), t.dtype = dtype, t.strides = strides_.back().data();
  }

  static void move_element(const std::byte* from, int32_t from_dtype, std::byte* to, int32_t to_dtype) {
    if (from_dtype == to_dtype) {
      switch (width_of(to_dtype)) {  // the compiler knows how to copy these
        case 1:
          return void(std::memcpy(to, from, 1));
        case 2:
          return void(std::memcpy(to, from, 2));
        case 4:
          return void(std::memcpy(to, from, 4));
        default:
          return void(std::memcpy(to, from, 8));
      }
    } else if (from_dtype == CHECKOP_I32) {
      int32_t narrow;
      std::memcpy(&narrow, from, sizeof(narrow));
      const int64_t value = narrow;
      std::memcpy(to, &value, sizeof(value));
    } else {
      int64_t wide;
      std::memcpy(&wide, from, sizeof(wide));
      using Limits = std::numeric_limits<int32_t>;
      const auto value = static_cast<int32_t>(std::clamp<int64_t>(wide, Limits::min(), Limits::max()));
      std::memcpy(to, &value, sizeof(value));
    }
  }

  checkop_call call_;
  std::vector<checkop_tensor> inputs_;
  std::vector<std::vector<std::byte>> copies_;
  std::vector<std::vector<int64_t>> strides_;
};

void run_packed(const checkop_call* call, const std::function<void(const checkop_call&)>& launch) {
  PackedCall packed(*call);
  while (true) {
    try {
      return launch(packed.get());
    } catch (const OtherIntegers& integers) {  // a check before any work
      if (!packed.convert(integers)) throw;
    }
  }
}

}  // namespace

checkop_status run(const checkop_call* call, const std::function<void(const checkop_call&)>& launch) {
  if (call->struct_size < sizeof(checkop_call)) return CHECKOP_FAILED;
  const auto answer = [&](checkop_status status, const char* sentence) {
    if (call->message != nullptr && call->message_bytes > 0)
      std::snprintf(call->message, call->message_bytes, "%s", sentence);
    return status;
  };
  try {
    if (call->kernel != nullptr && call->kernel->device == CHECKOP_CPU) {
      run_packed(call, launch);
    } else {
      launch(*call);  // a GPU's memory can't be copied here, so check_matrix() refuses
    }
    return CHECKOP_OK;
  } catch (const Refusal& refusal) {
    return answer(refusal.status, refusal.what());
  } catch (const std::exception& error) {
    return answer(CHECKOP_FAILED, error.what());
  }
}

const char* dtype_name(int32_t dtype) {
  static constexpr const char* kNames[] = {"fp64",  "fp32", "fp16", "bf16", "int64", "int32",
                                           "uint8", "e4m3", "e5m2", "e8m0", "e2m1x2"};
  return dtype >= CHECKOP_F64 && dtype <= CHECKOP_E2M1X2 ? kNames[dtype] : "unknown";
}

void Extent::bind(int64_t found, const char* tensor) {
  if (value < 0) value = found;
  if (value != found)
    throw Refusal(CHECKOP_FAILED, std::string(tensor) + ": " + name + " is " + std::to_string(found) + ", expected " +
                                      std::to_string(value));
}

void check_counts(const checkop_call& call, int32_t inputs, int32_t outputs) {
  if (call.n_inputs != inputs || call.n_outputs != outputs)
    throw Refusal(CHECKOP_FAILED, "got " + std::to_string(call.n_inputs) + " inputs and " +
                                      std::to_string(call.n_outputs) + " outputs, expected " + std::to_string(inputs) +
                                      " and " + std::to_string(outputs));
}

void check_computed_dtype(int32_t dtype) {
  if (dtype != CHECKOP_F32 && dtype != CHECKOP_F16 && dtype != CHECKOP_BF16)
    throw Refusal(CHECKOP_UNSUPPORTED,
                  std::string(dtype_name(dtype)) + " is not supported: sums are in fp32, for fp32, bf16 and fp16");
}

void check_matrix(const checkop_tensor& t, const char* name, int32_t dtype, Extent& rows, Extent& columns) {
  if (t.dtype != dtype) {
    const std::string sentence =
        std::string(name) + ": dtype " + dtype_name(t.dtype) + ", expected " + dtype_name(dtype);
    const auto is_integer = [](int32_t type) { return type == CHECKOP_I64 || type == CHECKOP_I32; };
    if (is_integer(t.dtype) && is_integer(dtype)) throw OtherIntegers(sentence, t.data, dtype);
    throw Refusal(CHECKOP_UNSUPPORTED, sentence);
  }
  if (t.rank < 1)
    throw Refusal(CHECKOP_FAILED, std::string(name) + ": rank " + std::to_string(t.rank) + ", expected at least 1");
  int64_t count = 1;
  for (int32_t d = t.rank - 1; d >= 0; --d) {
    if (t.shape[d] > 1 && t.strides[d] != count)
      throw Refusal(CHECKOP_UNSUPPORTED, std::string(name) + ": stride of dimension " + std::to_string(d) + " is " +
                                             std::to_string(t.strides[d]) + ", expected " + std::to_string(count) +
                                             " (contiguous)");
    count *= t.shape[d];
  }
  if (t.data == nullptr && count > 0) throw Refusal(CHECKOP_FAILED, std::string(name) + ": no data");
  const int64_t last = t.shape[t.rank - 1];
  columns.bind(last, name);
  rows.bind(last == 0 ? 0 : count / last, name);
}

void check_list(const checkop_tensor& t, const char* name, int32_t dtype, Extent& length) {
  Extent rows{"rows"}, columns{"columns"};
  check_matrix(t, name, dtype, rows, columns);
  length.bind(rows.value * columns.value, name);
}

void check_vector(const checkop_tensor& t, const char* name, int32_t dtype, Extent& length) {
  if (t.rank != 1)
    throw Refusal(CHECKOP_FAILED, std::string(name) + ": rank " + std::to_string(t.rank) + ", expected 1");
  check_list(t, name, dtype, length);
}

double exact_attribute(const checkop_call& c, std::string_view name) {
  for (int32_t i = 0; i < c.n_attrs; ++i)
    if (name == c.attrs[i].name) return c.attrs[i].value;
  throw Refusal(CHECKOP_FAILED, "attribute '" + std::string(name) + "' is missing");
}
float attribute(const checkop_call& c, std::string_view name) { return static_cast<float>(exact_attribute(c, name)); }

float* scalar(const checkop_tensor& t, const char* name) {
  int64_t count = 1;
  for (int32_t d = 0; d < t.rank; ++d) count *= t.shape[d];
  if (t.dtype != CHECKOP_F32 || count != 1 || t.data == nullptr)
    throw Refusal(CHECKOP_FAILED, std::string(name) + ": expected one fp32 element");
  return static_cast<float*>(t.data);
}

int64_t ignore_index(const checkop_call& call) { return static_cast<int64_t>(exact_attribute(call, "ignore_index")); }

void check_ids(const checkop_tensor& t, const char* name, int64_t count, int64_t vocab, int64_t except) {
  const auto* ids = static_cast<const int64_t*>(t.data);
  for (int64_t i = 0; i < count; ++i)
    if ((ids[i] < 0 || ids[i] >= vocab) && ids[i] != except)
      throw Refusal(CHECKOP_FAILED, std::string(name) + "[" + std::to_string(i) + "] = " + std::to_string(ids[i]) +
                                        " is outside [0, " + std::to_string(vocab) + ")");
}

void load(const checkop_tensor& t, int64_t first, int64_t n, float* __restrict__ to) {
  if (t.dtype == CHECKOP_F32) {
    std::copy_n(static_cast<const float*>(t.data) + first, n, to);
    return;
  }
  const auto* from = static_cast<const uint16_t*>(t.data) + first;
  if (t.dtype == CHECKOP_BF16)
    for (int64_t i = 0; i < n; ++i) to[i] = from_bf16(from[i]);
  else
    for (int64_t i = 0; i < n; ++i) to[i] = from_fp16(from[i]);
}

void store(const checkop_tensor& t, int64_t first, int64_t n, const float* __restrict__ from) {
  if (t.dtype == CHECKOP_F32) {
    std::copy_n(from, n, static_cast<float*>(t.data) + first);
    return;
  }
  auto* to = static_cast<uint16_t*>(t.data) + first;
  if (t.dtype == CHECKOP_BF16)
    for (int64_t i = 0; i < n; ++i) to[i] = to_bf16(from[i]);
  else
    for (int64_t i = 0; i < n; ++i) to[i] = to_fp16(from[i]);
}

std::vector<float> load_all(const checkop_tensor& t, int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  load(t, 0, n, values.data());
  return values;
}

float dot(const float* __restrict__ x, const float* __restrict__ y, int64_t n) {
  return blocked_sum(n, [=](int64_t i) { return x[i] * y[i]; });
}

void combine(const float* __restrict__ a, int64_t a_step, const float* __restrict__ b, int64_t b_row, int64_t terms,
             int64_t columns, float* __restrict__ out) {
  std::fill_n(out, columns, 0.0f);
  int64_t i = 0;
  for (; i + 8 <= terms; i += 8) {
    const float* __restrict__ c = a + i * a_step;
    const float* __restrict__ m = b + i * b_row;
    const float c0 = c[0], c1 = c[a_step], c2 = c[2 * a_step], c3 = c[3 * a_step];
    const float c4 = c[4 * a_step], c5 = c[5 * a_step], c6 = c[6 * a_step], c7 = c[7 * a_step];
    for (int64_t j = 0; j < columns; ++j) {
      const float low = (c0 * m[j] + c1 * m[b_row + j]) + (c2 * m[2 * b_row + j] + c3 * m[3 * b_row + j]);
      const float high =
          (c4 * m[4 * b_row + j] + c5 * m[5 * b_row + j]) + (c6 * m[6 * b_row + j] + c7 * m[7 * b_row + j]);
      out[j] += low + high;
    }
  }
  for (; i < terms; ++i)
    for (int64_t j = 0; j < columns; ++j) out[j] += a[i * a_step] * b[i * b_row + j];
}

SumExp sum_exp(const float* z, int64_t n) {
  SumExp s;
  for (int64_t i = 0; i < n; ++i) s.max = z[i] > s.max ? z[i] : s.max;
  s.sum = blocked_sum(n, [z, shift = s.shift()](int64_t i) { return std::exp(z[i] - shift); });
  return s;
}

void parallel_for(int64_t n, int64_t work, const std::function<void(int64_t, int64_t)>& body) {
  constexpr int64_t kWorkPerThread = int64_t{1} << 20, kMaxThreads = 16;
  static const int64_t cores = std::max(1u, std::thread::hardware_concurrency());  // once: it reads files
  const int64_t parts = std::max(int64_t{1}, std::min({n, work / kWorkPerThread, cores, kMaxThreads}));
  if (parts == 1) return body(int64_t{0}, n);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(parts));
  const auto run_part = [&](int64_t part) {
    try {
      body(n * part / parts, n * (part + 1) / parts);
    } catch (...) {
      errors[static_cast<size_t>(part)] = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(parts));
  int64_t part = 1;
  try {
    for (; part < parts; ++part) threads.emplace_back(run_part, part);
  } catch (const std::system_error&) {  // no more threads available: the rest runs here
  }
  run_part(0);
  for (; part < parts; ++part) run_part(part);
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace native
