// SPDX-License-Identifier: Apache-2.0
// Emulates varlen_attention as kernels compute it: attention of one sequence after the other.
#include <algorithm>
#include <array>

#include "emulation/sequences.hpp"

namespace checkop {
namespace varlen_attention {
namespace {

using namespace emulation;

constexpr std::string_view kOwnKeyBounds = "cu_seqlens_k";
constexpr int64_t kTileOfKeys = 8;

constexpr FaultSpec kKeysFromTile{"keys_from_tile",
                                  "keys are read from a multiple of 8 on, with some of the sequence before"};
constexpr FaultSpec kLastSequenceExtended{"last_sequence_extended", "the last sequence ends with the tensor",
                                          "nonfinite"};
constexpr FaultSpec kKeyBoundsIgnored{"key_bounds_ignored", "the keys are taken to have the bounds of the queries",
                                      "accuracy", "", kOwnKeyBounds};
constexpr FaultSpec kEmptyUncounted{"empty_uncounted",
                                    "sequences without queries are passed over, and the keys of later ones move up",
                                    "accuracy", "", kOwnKeyBounds};
constexpr FaultSpec kOffsetIgnored{"causal_offset_ignored",
                                   "query i sees keys up to i, not up to i + (number of keys - number of queries)",
                                   "accuracy", "", kOwnKeyBounds};
constexpr FaultSpec kNoKeysDivided{"no_keys_divided", "a query without keys divides by its sum of 0", "nonfinite", "",
                                   kOwnKeyBounds};
constexpr FaultSpec kKeyRestStale{"key_rest_stale",
                                  "dk and dv behind the last sequence keep what lay there: the first row"};
constexpr FaultSpec kKeyGradientsOfQueries{"key_gradients_at_queries",
                                           "dk and dv are stored where the queries of the sequence are", "accuracy", "",
                                           kOwnKeyBounds};

constexpr FaultSpec kSinkGradientOfRest{"sink_gradient_of_rest", "dsinks counts rows behind the last sequence, too",
                                        "nonfinite", "", "sinks grad_lse"};

enum Input : int { kOfQ, kOfK, kOfV, kOfQBounds, kOfKBounds, kOfSinks, kOfGradO, kOfSavedO, kOfSavedLse, kOfGradLse };
enum Output : int { kOfDq, kOfDk, kOfDv, kOfDSinks };
constexpr int kOfO = 0, kOfLse = 1;  // outputs of the forward pass

/// Tokens of one sequence.
struct Sequence {
  int64_t first_query, n_queries, first_key, n_keys;
};

/// The sequences as the emulated kernel sees them.
std::vector<Sequence> sequences_of(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const int64_t all_q = args.in(kOfQ).shape[0], all_k = args.in(kOfK).shape[0];
  std::vector<int64_t> q = args.integers(kOfQBounds);
  const bool shared = !args.has(kOfKBounds) || a.has(kKeyBoundsIgnored.name);
  std::vector<int64_t> k = shared ? q : args.integers(kOfKBounds);
  for (int64_t& bound : k) bound = std::min(bound, all_k);
  if (a.has(kSequencesJoined.name)) q = {0, q.back()}, k = {0, k.back()};
  if (a.has(kLastSequenceExtended.name) && q.size() > 1) q.back() = all_q, k.back() = all_k;
  std::vector<Sequence> all;
  size_t of_keys = 0;
  for (size_t s = 0; s + 1 < q.size(); ++s) {
    if (a.has(kEmptyUncounted.name) && q[s + 1] == q[s]) continue;
    const size_t own = a.has(kEmptyUncounted.name) ? of_keys++ : s;
    Sequence one{q[s], q[s + 1] - q[s], k[own], k[own + 1] - k[own]};
    const int64_t more = a.has(kKeysFromTile.name) && one.n_keys > 0 ? one.first_key % kTileOfKeys : 0;
    one.first_key -= more, one.n_keys += more;
    all.push_back(one);
  }
  if (a.has(kLastSequenceSkipped.name) && !all.empty()) all.pop_back();
  if (a.has(kRestComputed.name)) all.push_back({q.back(), all_q - q.back(), k.back(), all_k - k.back()});
  return all;
}

AttentionProblem problem(const EmulationArgs& args, const Matrix& q, const Matrix& k, const Matrix& v,
                         const Sequence& s) {
  const int64_t q_heads = args.in(kOfQ).shape[1], kv_heads = args.in(kOfK).shape[1];
  return sequence_problem(args, kOfSinks, q_heads, kv_heads, heads_first(q, q_heads, s.first_query, s.n_queries),
                          heads_first(k, kv_heads, s.first_key, s.n_keys),
                          heads_first(v, kv_heads, s.first_key, s.n_keys));
}

/// Changes the queries' rows of an output with tokens_q rows as the faults do that overwrite them.
void spoil_queries(const EmulationArgs& args, std::vector<double>& to) {
  const Arithmetic& a = args.arithmetic;
  const int64_t tokens = args.in(kOfQ).shape[0], used = args.integers(kOfQBounds).back();
  const int64_t of_token = std::ssize(to) / std::max<int64_t>(tokens, 1);
  for (const Sequence& s : sequences_of(args)) {
    if (a.has(kNoKeysDivided.name)) {
      const int64_t unseen = args.attrs[0] != 0 || s.n_keys == 0 ? std::max<int64_t>(0, s.n_queries - s.n_keys) : 0;
      std::fill_n(to.begin() + s.first_query * of_token, unseen * of_token, NAN);
    }
    spill_tile(a, of_token, s.first_query, s.n_queries, used, to);
  }
}

void finish_queries(const EmulationArgs& args, std::vector<double>& to) {
  spoil_queries(args, to);
  store_rest(args.arithmetic, kRestStale, args.integers(kOfQBounds).back(), args.in(kOfQ).shape[0], to);
}

void forward(const EmulationArgs& args) {
  const Matrix q = factor(args, kOfQ), k = factor(args, kOfK), v = factor(args, kOfV);
  const int64_t q_heads = args.in(kOfQ).shape[1];
  const std::vector<int64_t> bounds = args.integers(kOfQBounds);
  const Arithmetic& a = args.arithmetic;
  std::vector<double>& lse = args.out(kOfLse);
  std::fill(lse.begin(), lse.end(), lse_without_keys(a));
  for (const Sequence& s : sequences_of(args)) {
    AttentionOutput own = attention_output(of_sequence(args, s.n_queries, s.n_keys), problem(args, q, k, v, s));
    const int64_t stored = stored_queries(a, bounds, s.n_queries);
    store_heads(own.o, q_heads, s.n_queries, s.first_query, stored, args.out(kOfO));
    if (!lse.empty()) store_lse(a, std::move(own.lse), q_heads, s.n_queries, s.first_query, stored, lse);
  }
  finish_queries(args, args.out(kOfO));
  if (!lse.empty()) finish_queries(args, lse);
  store_by_head(a, q_heads, lse);
}

void backward(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const Matrix q = factor(args, kOfQ), k = factor(args, kOfK), v = factor(args, kOfV), grad = factor(args, kOfGradO);
  const int64_t q_heads = args.in(kOfQ).shape[1], kv_heads = args.in(kOfK).shape[1], all_k = args.in(kOfK).shape[0];
  const std::vector<int64_t> bounds = args.integers(kOfQBounds);
  const auto rows_of = [&](int input) {
    return Matrix{args.has(input) ? args.floats(input) : std::vector<float>(), 1};
  };
  const Matrix grad_lse = rows_of(kOfGradLse), saved_lse = rows_of(kOfSavedLse);
  const Matrix saved_o = args.has(kOfSavedO) ? factor(args, kOfSavedO) : Matrix{};
  Matrix of_sinks = Matrix::zeros(q.rows(), 1);  // what each query adds, by token and head
  int64_t queries_end = bounds.back();
  for (const Sequence& s : sequences_of(args)) {
    const auto of_queries = [&](const Matrix& tokens) {
      return heads_first(tokens, q_heads, s.first_query, s.n_queries);
    };
    AttentionProblem own = problem(args, q, k, v, s);
    if (args.has(kOfSavedO)) own.saved_o = of_queries(saved_o);
    if (args.has(kOfSavedLse)) own.saved_lse = of_queries(saved_lse).values;
    if (args.has(kOfGradLse)) own.grad_lse = of_queries(grad_lse).values;
    const AttentionGradients to = attention_gradients(of_sequence(args, s.n_queries, s.n_keys), own, of_queries(grad));
    for (int64_t i = 0; i < std::ssize(to.sinks); ++i) {
      const int64_t head = i / s.n_queries, token = s.first_query + i % s.n_queries;
      of_sinks.row(token * q_heads + head)[0] = to.sinks[static_cast<size_t>(i)];
      queries_end = std::max(queries_end, token + 1);
    }
    store_heads(to.dq, q_heads, s.n_queries, s.first_query, stored_queries(args.arithmetic, bounds, s.n_queries),
                args.out(kOfDq));
    const int64_t at = a.has(kKeyGradientsOfQueries.name) ? s.first_query : s.first_key;
    const int64_t kept = std::min(s.n_keys, all_k - at);
    store_heads(to.dk, kv_heads, s.n_keys, at, kept, args.out(kOfDk));
    store_heads(to.dv, kv_heads, s.n_keys, at, kept, args.out(kOfDv));
  }
  finish_queries(args, args.out(kOfDq));
  const int64_t keys_end = args.integers(args.has(kOfKBounds) ? kOfKBounds : kOfQBounds).back();
  store_rest(a, kKeyRestStale, keys_end, all_k, args.out(kOfDk));
  store_rest(a, kKeyRestStale, keys_end, all_k, args.out(kOfDv));
  for (int64_t row = queries_end * q_heads; a.has(kSinkGradientOfRest.name) && row < of_sinks.rows(); ++row)
    of_sinks.row(row)[0] = grad_lse.row(row)[0];
  store_sink_gradients(args, of_sinks.values, a.has(kSinkGradientOfRest.name) ? q.rows() / q_heads : queries_end, 1,
                       q_heads, args.out(kOfDSinks));
}

constexpr std::array kPackFaults{kSequencesJoined,  kLastSequenceSkipped, kTileSpills,    kLongQueriesLost,
                                 kRestComputed,     kRestStale,           kKeysFromTile,  kLastSequenceExtended,
                                 kKeyBoundsIgnored, kEmptyUncounted,      kOffsetIgnored, kNoKeysDivided};
constexpr std::array kFaults = joined(joined(kSequenceFaults, kPackFaults), joined(kWindowFaults, kCapFaults));
constexpr std::array kForwardFaults = joined(kFaults, joined(kPackedLseFaults, kPackedSinkForwardFaults));
constexpr std::array kBackwardFaults =
    joined(joined(kFaults, joined(joined(kAttentionGradientFaults, kCapGradientFaults), kSavedFaults)),
           joined(kPackedSinkBackwardFaults, std::array{kKeyRestStale, kKeyGradientsOfQueries, kSinkGradientOfRest}));

}  // namespace
}  // namespace varlen_attention

extern const Emulation kVarlenAttentionForward, kVarlenAttentionBackward;
const Emulation kVarlenAttentionForward{varlen_attention::forward, varlen_attention::kForwardFaults};
const Emulation kVarlenAttentionBackward{varlen_attention::backward, varlen_attention::kBackwardFaults};

}  // namespace checkop
