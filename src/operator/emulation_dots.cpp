// SPDX-License-Identifier: Apache-2.0
// Computes several dot products of an emulation at once: each is one chain of additions, so a CPU can overlap them.
#include <array>

#include "operator/emulation.hpp"

namespace checkop {
namespace {

constexpr int kAtOnce = 16;

/// Operands: element k of a, element k of the c-th b.
struct Factors {
  const float* a;
  int64_t a_step;
  const float* b;
  int64_t b_step, b_next;
};

/// Terms begin ... end - 1, in ascending or reversed order.
struct Run {
  int64_t begin, end;
  bool reversed;
};

using Totals = std::array<float, kAtOnce>;

/// Dot products of one run for `count` vectors b. `beside`: kAtOnce vectors b lie next to each other (b_next is 1).
template <bool fused, bool beside, bool in_bf16>
[[gnu::always_inline]] inline Totals add_run(const Factors& of, const Run& run, int count) {
  Totals totals{};
  const int n = beside ? kAtOnce : count;
  for (int64_t i = run.begin; i < run.end; ++i) {
    const int64_t k = run.reversed ? run.end - 1 - (i - run.begin) : i;
    const float a = of.a[k * of.a_step];
    const float* b = of.b + k * of.b_step;
    for (int c = 0; c < n; ++c) {
      float& total = totals[static_cast<size_t>(c)];
      const float of_b = b[beside ? c : c * of.b_next];
      total = fused ? __builtin_fmaf(a, of_b, total) : total + a * of_b;
      if (in_bf16) total = Arithmetic::to_bf16(total);
    }
  }
  return totals;
}

template <bool fused, bool in_bf16 = false>
[[gnu::always_inline]] inline Totals add_run(const Factors& of, const Run& run, int count) {
  if (count < kAtOnce) return add_run<fused, false, in_bf16>(of, run, count);
  return of.b_next == 1 ? add_run<fused, true, in_bf16>(of, run, kAtOnce)
                        : add_run<fused, false, in_bf16>(of, run, kAtOnce);
}

/// How a chain of additions rounds.
enum class Chain : uint8_t { products_first, fused, in_bf16 };

[[gnu::always_inline]] inline Totals add_run(const Factors& of, const Run& run, int count, Chain chain) {
  if (chain == Chain::in_bf16) return add_run<false, true>(of, run, count);
  return chain == Chain::fused ? add_run<true>(of, run, count) : add_run<false>(of, run, count);
}
Totals add_run_anywhere(const Factors& of, const Run& run, int count, Chain chain) {
  return add_run(of, run, count, chain);
}

#if defined(__x86_64__)
/// For CPUs where a fused multiply-add is an instruction, not a call of the math library.
[[gnu::target("avx2,fma")]] Totals add_run_fma(const Factors& of, const Run& run, int count, Chain chain) {
  return add_run(of, run, count, chain);
}
const auto sum_run = __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2") ? add_run_fma : add_run_anywhere;
#else
const auto sum_run = add_run_anywhere;
#endif

}  // namespace

void Arithmetic::dots(int64_t count, float* to, int64_t n, const float* a, int64_t a_step, const float* b,
                      int64_t b_step, int64_t b_next) const {
  using enum Plan::Order;
  if (n == 0) {  // a and b may be null
    std::fill_n(to, count, 0.0F);
    return;
  }
  if (bf16_partials_ || partial_lost_ || rounds_partials_ || plan_.order == pairwise) {
    for (int64_t c = 0; c < count; ++c) to[c] = dot(n, a, a_step, b + c * b_next, b_step);
    return;
  }
  const Chain chain = bf16_accumulator_ ? Chain::in_bf16 : plan_.fma ? Chain::fused : Chain::products_first;
  const int64_t terms = terms_of(n);
  const bool whole = plan_.order == serial || plan_.order == reversed;
  const int64_t runs = whole ? 1 : plan_.order == split ? plan_.width : (terms + plan_.width - 1) / plan_.width;
  const auto bound = [&](int64_t i) {
    return whole ? i * terms : plan_.order == split ? i * terms / plan_.width : std::min(terms, i * plan_.width);
  };
  for (int64_t first = 0; first < count; first += kAtOnce) {
    const auto here = static_cast<int>(std::min<int64_t>(kAtOnce, count - first));
    const Factors factors{a, a_step, b + first * b_next, b_step, b_next};
    Totals totals{};
    for (int64_t i = 0; i < runs; ++i) {
      const Totals part = sum_run(factors, {bound(i), bound(i + 1), plan_.order == reversed}, here, chain);
      for (size_t c = 0; c < totals.size(); ++c) totals[c] = whole ? part[c] : kept(totals[c] + part[c]);
    }
    std::copy_n(totals.begin(), here, to + first);
  }
}

}  // namespace checkop
