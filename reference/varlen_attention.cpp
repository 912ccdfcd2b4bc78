// SPDX-License-Identifier: Apache-2.0
// varlen_attention: attention of sequences of different lengths, packed one after the other.
#include <array>
#include <limits>

#include "attention.hpp"
#include "left_out.hpp"
#include "rearranged.hpp"
#include "sequences.hpp"

namespace checkop {

extern const Emulation kVarlenAttentionForward, kVarlenAttentionBackward;  // emulation/varlen_attention.cpp

namespace varlen_attention {
namespace {

constexpr std::string_view kQueries = "tokens_q q_heads head_dim", kKeys = "tokens_k kv_heads head_dim",
                           kOutputs = "tokens_q q_heads v_dim", kValues = "tokens_k kv_heads v_dim";
constexpr TensorSpec kQ{"q", kQueries, Fill::query}, kK{"k", kKeys, Fill::key}, kV{"v", kValues};
constexpr TensorSpec kQBounds{"cu_seqlens_q", "seqs+1", Fill::positions, "", DType::i32};
constexpr TensorSpec kKBounds{"cu_seqlens_k", "seqs+1", Fill::positions, "", DType::i32, /*optional=*/true};
constexpr std::string_view kRows = "tokens_q q_heads";
enum Input : int { kOfQ, kOfK, kOfV, kOfQBounds, kOfKBounds, kOfSinks, kOfGradO, kOfSavedO, kOfSavedLse, kOfGradLse };
enum Output : int { kDq, kDk, kDv, kOfDSinks };
constexpr int kOfLse = 1;  // output of the forward pass

constexpr std::array kForwardIn{kQ, kK, kV, kQBounds, kKBounds, kSinks};
constexpr std::array kForwardOut{
    OutputSpec{{"o", kOutputs}, Numerics::contraction, "head_dim tokens_k"},
    OutputSpec{
        {"lse", kRows, Fill::normal, "", DType::f32, /*optional=*/true}, Numerics::logprob, "head_dim tokens_k"}};
constexpr std::array kBackwardIn{kQ,
                                 kK,
                                 kV,
                                 kQBounds,
                                 kKBounds,
                                 kSinks,
                                 TensorSpec{"grad_o", kOutputs, Fill::upstream},
                                 TensorSpec{"o", kOutputs, Fill::saved, "", {}, /*optional=*/true},
                                 TensorSpec{"lse", kRows, Fill::saved, "", DType::f32, /*optional=*/true},
                                 TensorSpec{"grad_lse", kRows, Fill::upstream, "", DType::f32, /*optional=*/true}};
constexpr std::array kBackwardOut{
    OutputSpec{{"dq", kQueries}, Numerics::contraction, "head_dim v_dim tokens_k"},
    OutputSpec{{"dk", kKeys}, Numerics::contraction, "head_dim v_dim tokens_k q_heads*tokens_q"},
    OutputSpec{{"dv", kValues}, Numerics::contraction, "head_dim tokens_k q_heads*tokens_q"},
    OutputSpec{kDSinks, Numerics::reduction, "head_dim v_dim tokens_k tokens_q"},
};

/// The bounds of the sequences among the queries and among the keys.
struct Packs {
  Packs(const Tensor& q, const Tensor& k, const Tensor& of_q, const Tensor* of_k)
      : queries(read_bounds(of_q, of_k == nullptr ? std::min(q.shape[0], k.shape[0]) : q.shape[0])),
        keys(of_k == nullptr ? queries : read_bounds(*of_k, k.shape[0])) {}
  explicit Packs(const GoldArgs& args)
      : Packs(args.in(kOfQ), args.in(kOfK), args.in(kOfQBounds),
              args.has(kOfKBounds) ? &args.in(kOfKBounds) : nullptr) {}

  SequenceBounds queries, keys;
};

/// The inputs of some sequences, as attention has them.
struct Batch {
  Batch(const GoldArgs& args, const Packs& packs, const SequenceBatch& sequences)
      : q(as_batch(args.in(kOfQ), packs.queries, sequences)),
        k(as_batch(args.in(kOfK), packs.keys, sequences)),
        v(as_batch(args.in(kOfV), packs.keys, sequences)) {}

  Tensor q, k, v;
};

/// The arguments of attention on such inputs.
GoldArgs of_batch(const GoldArgs& args, std::span<const Tensor* const> inputs, unsigned threads, GoldSink sink) {
  GoldArgs own = args;
  own.inputs = inputs, own.threads = threads, own.sink = std::move(sink);
  return own;
}

/// Gold of varlen_attention: attention of every sequence by itself.
///   in:  q[tokens_q, q_heads, head_dim], k[tokens_k, kv_heads, head_dim], v[tokens_k, kv_heads, v_dim],
///        cu_seqlens_q[seqs+1], optional cu_seqlens_k[seqs+1], without which the keys have the bounds of the queries,
///        optional sinks[q_heads]
///   out: o[tokens_q, q_heads, v_dim]; 0 from row cu_seqlens_q[seqs] on; optional lse[tokens_q, q_heads], there -inf
/// Sequence s has queries [cu_seqlens_q[s], cu_seqlens_q[s+1]) and the keys of its own bounds. `causal` counts from its
/// own ends: query i of n sees keys j <= i + (number of keys - n); windows count from its own key. Rows behind the last
/// sequence are never read; they may hold anything. Throws InputError for bounds that do not start with 0, decrease, or
/// end beyond the tokens.
void forward(const GoldArgs& args) {
  const Packs packs(args);
  const int64_t q_heads = args.in(kOfQ).shape[1];
  for_sequences(args, packs.queries, packs.keys, [&](const SequenceBatch& sequences, unsigned threads) {
    const Batch batch(args, packs, sequences);
    const std::array<const Tensor*, 5> inputs{&batch.q, &batch.k, &batch.v, nullptr, args.inputs[kOfSinks]};
    const auto emit = [&](const GoldRows& rows) { emit_sequence(args, rows, q_heads, packs.queries, sequences); };
    attention_forward(of_batch(args, inputs, threads, emit), 1);
  });
  emit_rest(args, 0, packs.queries.back());
  if (!args.output_shapes[kOfLse].empty())
    emit_rest(args, kOfLse, packs.queries.back(), -std::numeric_limits<double>::infinity());
}

/// Gold of varlen_attention's gradients: those of every sequence by itself, 0 behind the last one.
///   in:  as forward, then grad_o[tokens_q, q_heads, v_dim], optional o[tokens_q, q_heads, v_dim] and
///        lse[tokens_q, q_heads], which a forward pass saved, and grad_lse[tokens_q, q_heads]
///   out: dq, dk, dv, shaped as q, k and v; with sinks dsinks, summed over the sequences
void backward(const GoldArgs& args) {
  const Packs packs(args);
  const int64_t q_heads = args.in(kOfQ).shape[1], kv_heads = args.in(kOfK).shape[1];
  SinkGradients dsinks(std::ssize(packs.queries) - 1);
  for_sequences(args, packs.queries, packs.keys, [&](const SequenceBatch& sequences, unsigned threads) {
    const Batch batch(args, packs, sequences);
    const Tensor grad = as_batch(args.in(kOfGradO), packs.queries, sequences);
    std::array<Tensor, 3> optionals;  // o, lse and the gradient of lse
    std::array<const Tensor*, 9> inputs{&batch.q, &batch.k, &batch.v, nullptr, args.inputs[kOfSinks], &grad};
    for (size_t i = 0; i < optionals.size(); ++i) {
      const int from = kOfSavedO + static_cast<int>(i);
      if (!args.has(from)) continue;
      optionals[i] = as_batch(args.in(from), packs.queries, sequences);
      inputs[inputs.size() - optionals.size() + i] = &optionals[i];
    }
    const auto emit = [&](const GoldRows& rows) {
      if (rows.output == kOfDSinks) return dsinks.take(sequences.front(), rows);
      const bool of_q = rows.output == kDq;
      emit_sequence(args, rows, of_q ? q_heads : kv_heads, of_q ? packs.queries : packs.keys, sequences);
    };
    attention_backward(of_batch(args, inputs, threads, emit), 1);
  });
  emit_rest(args, kDq, packs.queries.back());
  emit_rest(args, kDk, packs.keys.back());
  emit_rest(args, kDv, packs.keys.back());
  if (args.has(kOfSinks)) dsinks.emit(args, kOfDSinks, q_heads);
}

Packs packs_of(const IdentityArgs& args) {
  return {args.in(kOfQ), args.in(kOfK), args.in(kOfQBounds), args.inputs[kOfKBounds]};
}

void check_forward(const IdentityArgs& args) { check_rest(args, 0, packs_of(args).queries.back()); }
void check_backward(const IdentityArgs& args) {
  const Packs packs = packs_of(args);
  check_rest(args, kDq, packs.queries.back());
  check_rest(args, kDk, packs.keys.back());
  check_rest(args, kDv, packs.keys.back());
}

/// `products` products of the sequences' pairs; see attention_work(). Rows behind the last sequence are not read.
template <AttentionProducts products>
Work work(const GoldArgs& args) {
  const Packs packs(args);
  const Tensor& q = args.in(kOfQ);
  const int64_t queries_end = packs.queries.back(), keys_end = packs.keys.back();
  double unread =
      rest_bytes(q, queries_end) + rest_bytes(args.in(kOfK), keys_end) + rest_bytes(args.in(kOfV), keys_end);
  for (const int of_queries : {kOfGradO, kOfSavedO, kOfSavedLse, kOfGradLse})
    if (products == kBackwardProducts && args.has(of_queries)) unread += rest_bytes(args.in(of_queries), queries_end);
  return {products.operations(q.shape[2], args.in(kOfV).shape[2]) * static_cast<double>(q.shape[1]) *
              kept_pairs(packs.queries, packs.keys, AttentionAttrs(args.attrs)),
          unread};
}

/// Draws the sequences; see draw_bounds(). Rows behind the last one hold payloads.
void refine(const FillArgs& args) {
  Tensor &of_q = *args.find("cu_seqlens_q"), *const of_k = args.find("cu_seqlens_k");
  draw_bounds(args, of_q, of_k, "tokens_q", "tokens_k");
  const auto queries_end = static_cast<int64_t>(of_q.at(of_q.count() - 1));
  const auto keys_end = of_k == nullptr ? queries_end : static_cast<int64_t>(of_k->at(of_k->count() - 1));
  for (const std::string_view name : {"q", "grad_o", "grad_lse"})
    if (Tensor* const tensor = args.find(name); tensor != nullptr) plant_rest(args, *tensor, queries_end);
  plant_sinks(args);
  for (const std::string_view name : {"k", "v"}) plant_rest(args, *args.find(name), keys_end);
}

/// The sequences among others, or in another order. Tensors that begin with the tokens of queries, or of keys, go with
/// them.
template <Documents change>
std::optional<Rearranged> among_others(const RearrangeArgs& args) {
  const Tensor *const of_k = args.inputs[kOfKBounds], &of_q = args.in(kOfQBounds);
  const Packs packs(args.in(kOfQ), args.in(kOfK), of_q, of_k);
  const int64_t others = others_of(packs.queries);
  Packing queries = repack(packs.queries, args.in(kOfQ).shape[0], change, others);
  Packing keys = repack(packs.keys, args.in(kOfK).shape[0], change, others);
  if (queries.from.empty() || keys.from.empty()) return {};
  if (!is_changed(queries, packs.queries) && !is_changed(keys, packs.keys)) return {};
  Rearranged other;
  other.inputs.resize(args.inputs.size());
  for (size_t i = 0; i < args.inputs.size(); ++i) {
    const std::string_view dim = split_dims(args.pass.inputs[i].dims).front();
    if (args.inputs[i] == nullptr) continue;
    if (dim == "tokens_q") other.inputs[i] = with_rows(*args.inputs[i], queries.from);
    if (dim == "tokens_k") other.inputs[i] = with_rows(*args.inputs[i], keys.from);
  }
  const int64_t bounds = std::ssize(queries.bounds);
  other.inputs[kOfQBounds] = of_integers(of_q, {bounds}, queries.bounds);
  if (of_k != nullptr) other.inputs[kOfKBounds] = of_integers(*of_k, {bounds}, keys.bounds);
  other.dims = {{"seqs", bounds - 1}, {"tokens_q", std::ssize(queries.from)}, {"tokens_k", std::ssize(keys.from)}};
  other.rows = {{"tokens_q", std::move(queries.rows)}, {"tokens_k", std::move(keys.rows)}};
  return other;
}

constexpr std::string_view kTokens = "tokens_q tokens_k";
constexpr std::array kRearrangements{
    Rearrangement{"documents", "the sequences in reverse", kTokens, 2, among_others<Documents::reversed>},
    Rearrangement{"documents", "without every second sequence", kTokens, 2, among_others<Documents::removed>},
    Rearrangement{"documents", "other tokens in every second sequence", kTokens, 2, among_others<Documents::replaced>},
    Rearrangement{"documents", "every second sequence twice as long", kTokens, 2, among_others<Documents::longer>},
};

const std::array kForwardRecipes = of_tokens(kAttentionForwardRecipes);
const std::array kBackwardRecipes = of_tokens(kAttentionBackwardRecipes);

constexpr std::array kPasses{Pass{"forward", kForwardIn, kForwardOut, forward, check_forward, work<kForwardProducts>,
                                  &kVarlenAttentionForward, nullptr, kForwardRecipes},
                             Pass{"backward", kBackwardIn, kBackwardOut, backward, check_backward,
                                  work<kBackwardProducts>, &kVarlenAttentionBackward, nullptr, kBackwardRecipes}};

}  // namespace
}  // namespace varlen_attention

extern const Operator kVarlenAttention;
constexpr Operator kVarlenAttention{"varlen_attention",
                                    "reduction",
                                    "o = attention of every packed sequence by itself",
                                    "seqs",
                                    kWindowAttrs,
                                    varlen_attention::kPasses,
                                    check_window_sizes,
                                    varlen_attention::refine,
                                    /*parallel_dim=*/"",
                                    /*left_out=*/"rows behind the last sequence",
                                    varlen_attention::kRearrangements};

}  // namespace checkop
