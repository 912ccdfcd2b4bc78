// SPDX-License-Identifier: Apache-2.0
// Shared by the "native" CPU candidates of attention over packed sequences: bounds, and a sequence's tokens as the
// tensors of a call of attention (cpu/attention.hpp). So the bits are those of attention of the sequence alone.
#pragma once

#include <cstring>

#include "cpu/attention.hpp"

namespace native::attention {

inline size_t width_of(const checkop_tensor& t) { return t.dtype == CHECKOP_F32 ? 4 : 2; }

/// A contiguous tensor [1, heads, seq, head_dim] with memory of its own, or an absent one.
class EntryTensor {
 public:
  EntryTensor() = default;
  EntryTensor(int32_t dtype, int64_t heads, int64_t seq, int64_t head_dim)
      : dtype_(dtype), shape_{1, heads, seq, head_dim}, strides_{heads * seq * head_dim, seq * head_dim, head_dim, 1} {
    bytes_.resize(size(heads * seq * head_dim) * (dtype == CHECKOP_F32 ? 4 : 2) + 1);  // data is not NULL
  }

  /// take() copies row `row` of a tensor to row `i` of head `head`; put() copies it back.
  void take(int64_t head, int64_t i, const checkop_tensor& from, int64_t row) {
    std::memcpy(at(head, i), static_cast<const std::byte*>(from.data) + size(row) * row_bytes(), row_bytes());
  }
  void put(int64_t head, int64_t i, const checkop_tensor& to, int64_t row) {
    std::memcpy(static_cast<std::byte*>(to.data) + size(row) * row_bytes(), at(head, i), row_bytes());
  }
  /// take() and put() for all rows of a tensor [tokens, heads] with one element per row, from token `first` on.
  void take_column(const checkop_tensor& from, int64_t first) {
    for (int64_t i = 0; i < shape_[1] * shape_[2]; ++i) take(i % shape_[1], i / shape_[1], from, first * shape_[1] + i);
  }
  void put_column(const checkop_tensor& to, int64_t first) {
    for (int64_t i = 0; i < shape_[1] * shape_[2]; ++i) put(i % shape_[1], i / shape_[1], to, first * shape_[1] + i);
  }
  checkop_tensor view() {
    if (bytes_.empty()) return {nullptr, 0, 0, nullptr, nullptr};
    return {bytes_.data(), dtype_, 4, shape_.data(), strides_.data()};
  }
  /// view() of rows with one element, as [1, heads, seq].
  checkop_tensor view_of_rows() {
    checkop_tensor rows = view();
    rows.rank = std::min(rows.rank, 3);
    return rows;
  }

 private:
  size_t row_bytes() const { return size(shape_[3]) * (dtype_ == CHECKOP_F32 ? 4 : 2); }
  std::byte* at(int64_t head, int64_t i) { return &bytes_[size(head * shape_[2] + i) * row_bytes()]; }

  int32_t dtype_ = 0;
  std::array<int64_t, 4> shape_{}, strides_{};
  std::vector<std::byte> bytes_;
};

/// A tensor of tokens [tokens, heads, width], width head_dim or v_dim.
struct Tokens {
  /// Throws Refusal unless `t` has rank 3.
  Tokens(const checkop_tensor& t, const char* name) : tensor(t) {
    if (t.rank != 3) throw Refusal(CHECKOP_FAILED, std::string(name) + ": expected rank 3");
    count = t.shape[0], heads = t.shape[1], width = t.shape[2];
    Extent rows{"tokens * heads"}, columns{"head_dim"};
    check_matrix(t, name, t.dtype, rows, columns);
  }
  void require_like(const Tokens& other, const char* name) const { require_like(other, other.width, name); }
  void require_like(const Tokens& other, int64_t other_width, const char* name) const {
    if (tensor.dtype != other.tensor.dtype || count != other.count || heads != other.heads || width != other_width)
      throw Refusal(CHECKOP_FAILED, std::string(name) + ": dtype or extents differ from those of its like");
  }

  /// Tokens [first, first + n) as one batch entry.
  EntryTensor entry(int64_t first, int64_t n) const {
    EntryTensor all(tensor.dtype, heads, n, width);
    for (int64_t i = 0; i < n * heads; ++i) all.take(i % heads, i / heads, tensor, first * heads + i);
    return all;
  }
  void store(EntryTensor& from, int64_t first, int64_t n) const {
    for (int64_t i = 0; i < n * heads; ++i) from.put(i % heads, i / heads, tensor, first * heads + i);
  }
  void clear_from(int64_t first) const {
    const size_t of_token = size(heads * width) * width_of(tensor);
    std::memset(static_cast<std::byte*>(tensor.data) + size(first) * of_token, 0, size(count - first) * of_token);
  }

  const checkop_tensor& tensor;
  int64_t count, heads, width;
};

/// Checks a tensor with a number per query, [tokens, heads] fp32; false if it is absent.
inline bool check_of_queries(const checkop_tensor& t, const char* name, const Tokens& q) {
  if (t.data == nullptr) return false;
  Extent rows{"tokens_q", q.count}, columns{"q_heads", q.heads};
  check_matrix(t, name, CHECKOP_F32, rows, columns);
  return true;
}

/// Sets lse to -inf from token `first` on: behind the last sequence.
inline void clear_lse_from(int64_t first, const checkop_tensor& lse) {
  auto* const all = static_cast<float*>(lse.data);
  std::fill(all + first * lse.shape[1], all + lse.shape[0] * lse.shape[1], -std::numeric_limits<float>::infinity());
}

/// The bounds of the sequences among `tokens` tokens. Refuses bounds that do not follow each other.
inline std::vector<int64_t> bounds_of(const checkop_tensor& t, const char* name, int64_t tokens) {
  Extent length{"sequences + 1"};
  check_list(t, name, CHECKOP_I32, length);
  const auto* bounds = static_cast<const int32_t*>(t.data);
  if (length.value < 1 || bounds[0] != 0) throw Refusal(CHECKOP_FAILED, std::string(name) + " does not start with 0");
  for (int64_t i = 1; i < length.value; ++i)
    if (bounds[i] < bounds[i - 1] || bounds[i] > tokens)
      throw Refusal(CHECKOP_FAILED, std::string(name) + "[" + std::to_string(i) + "] = " + std::to_string(bounds[i]) +
                                        " is below the one before it or beyond the " + std::to_string(tokens) +
                                        " tokens");
  return {bounds, bounds + length.value};
}

/// Runs a pass of attention on one batch entry, with the attributes of `call`. Tensors are given by view(), or as they
/// are in the call.
inline void run_entry(const checkop_call& call, checkop_status (*pass)(const checkop_call*, int),
                      std::vector<checkop_tensor> in, std::vector<checkop_tensor> out) {
  std::array<char, 256> message{};
  checkop_call own = call;
  own.inputs = in.data(), own.n_inputs = static_cast<int32_t>(in.size());
  own.outputs = out.data(), own.n_outputs = static_cast<int32_t>(out.size());
  own.message = message.data(), own.message_bytes = message.size();
  if (const checkop_status status = pass(&own, 1); status != CHECKOP_OK) throw Refusal(status, message.data());
}

}  // namespace native::attention
