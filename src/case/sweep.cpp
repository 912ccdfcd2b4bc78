// SPDX-License-Identifier: Apache-2.0
// Expands lists of names and sizes to cases.
#include "case/sweep.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <stdexcept>

#include "base/error.hpp"
#include "base/text.hpp"

namespace checkop {
namespace {

int64_t parse_size(const std::string& where, std::string_view text, int64_t least) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range)
    throw InputError(where, fmt::format("{} is too large", text), "give a size below 2^63");
  if (error != std::errc{} || end != text.data() + text.size() || value < least) {
    throw InputError(where, fmt::format("expected an integer >= 1, got {}", text.empty() ? "nothing" : text),
                     "give a size, a list 1,7,64 or a range 1:4096:x2");
  }
  return value;
}

void append_range(const std::string& where, std::string_view text, int64_t least, std::vector<int64_t>& sizes) {
  const size_t first = text.find(':'), second = text.find(':', first + 1);
  const int64_t begin = parse_size(where, text.substr(0, first), least);
  const int64_t end = parse_size(where, text.substr(first + 1, second - first - 1), least);
  std::string_view step = second == std::string_view::npos ? "1" : text.substr(second + 1);
  const bool times = step.starts_with('x');
  if (times) step.remove_prefix(1);
  const int64_t by = parse_size(where, step, 1);
  if (begin > end || (times && (by == 1 || begin == 0))) {
    throw InputError(where, fmt::format("the range {} never ends or is empty", text),
                     "give FIRST:LAST:STEP or FIRST:LAST:xFACTOR");
  }
  for (int64_t size = begin; size <= end;) {
    if (sizes.size() >= kMaxSizes)
      throw InputError(where, fmt::format("{} gives more than {} sizes", text, kMaxSizes), "choose a larger step");
    sizes.push_back(size);
    if (times ? size > end / by : size > end - by) break;
    size = times ? size * by : size + by;
  }
}

template <typename Range, typename Name>
std::vector<std::string> names_of(const Range& range, Name name) {
  std::vector<std::string> names;
  for (const auto& item : range) names.emplace_back(name(item));
  return names;
}

[[noreturn]] void unknown(const std::string& where, std::string_view noun, const std::string& name,
                          const std::vector<std::string>& known) {
  const std::string nearest = did_you_mean(name, known);
  throw InputError(where, fmt::format("unknown {} '{}'", noun, name),
                   fmt::format("{}{}known: {}", nearest, nearest.empty() ? "" : " ", fmt::join(known, ", ")));
}

/// The distinct presets, without what the sweep sets itself; one empty setting if there are no presets.
std::vector<PresetSizes> distinct_settings(const Sweep& sweep) {
  std::vector<PresetSizes> settings;
  for (PresetSizes setting : sweep.presets) {
    std::erase_if(setting.dims, [&](const auto& dim) { return sweep.dims.contains(dim.first); });
    std::erase_if(setting.attrs, [&](const auto& attr) { return sweep.attrs.contains(attr.first); });
    if (std::find(settings.begin(), settings.end(), setting) == settings.end()) settings.push_back(std::move(setting));
  }
  if (settings.empty()) settings.emplace_back();
  return settings;
}

/// The distinct `settings`, restricted to the pass's optional tensors.
std::vector<std::set<std::string, std::less<>>> settings_of(
    const Pass& pass, const std::vector<std::set<std::string, std::less<>>>& settings) {
  std::vector<std::set<std::string, std::less<>>> own;
  for (std::set<std::string, std::less<>> setting : settings) {
    const std::vector<std::string_view> known = optionals_of(pass);
    std::erase_if(setting,
                  [&](const std::string& name) { return std::find(known.begin(), known.end(), name) == known.end(); });
    if (std::find(own.begin(), own.end(), setting) == own.end()) own.push_back(std::move(setting));
  }
  return own;
}

void refuse_too_many(const Sweep& sweep, size_t n_settings, size_t n_before) {
  double n = static_cast<double>(n_settings * sweep.passes.size()) *
             static_cast<double>(sweep.dtypes.size() * sweep.optionals.size());
  for (const std::string_view dim : dims_of(*sweep.op)) {
    const auto given = sweep.dims.find(dim);
    if (given != sweep.dims.end()) n *= static_cast<double>(given->second.size());
  }
  if (n + static_cast<double>(n_before) > static_cast<double>(kMaxCases)) {
    throw InputError(fmt::format("cases of {}", sweep.op->name),
                     fmt::format("the lists make more than {} cases", kMaxCases), "give shorter lists");
  }
}

/// Appends every combination of sizes for one preset.
void append_sized(const Sweep& sweep, const PresetSizes& setting, std::vector<Case>& cases) {
  std::vector<Case> sized{sweep.data};
  sized.front().op = sweep.op;
  sized.front().attrs.clear();
  for (const AttrSpec& attr : sweep.op->attrs) {
    const auto given = sweep.attrs.find(attr.name), preset = setting.attrs.find(attr.name);
    sized.front().attrs.push_back(given != sweep.attrs.end()      ? given->second
                                  : preset != setting.attrs.end() ? preset->second
                                                                  : attr.fallback);
  }
  for (const std::string_view dim : dims_of(*sweep.op)) {
    const auto given = sweep.dims.find(dim);
    const auto preset = setting.dims.find(dim);
    const std::vector<int64_t> sizes = given != sweep.dims.end()      ? given->second
                                       : preset != setting.dims.end() ? std::vector{preset->second}
                                       : usual_size_of(dim).empty()   ? std::vector{default_size(dim)}
                                                                      : std::vector<int64_t>();
    if (sizes.empty()) continue;
    std::vector<Case> next;
    for (const Case& c : sized) {
      for (const int64_t size : sizes) {
        next.push_back(c);
        next.back().dims[std::string(dim)] = size;
      }
    }
    sized = std::move(next);
  }
  std::for_each(sized.begin(), sized.end(), drop_usual_sizes);
  std::move(sized.begin(), sized.end(), std::back_inserter(cases));
}

}  // namespace

bool is_all(const std::vector<std::string>& names) { return names.size() == 1 && names.front() == "all"; }

int64_t default_size(std::string_view dim) {
  if (dim == "batch") return 2;
  if (dim == "seq" || dim.ends_with("_seq")) return 16;
  if (dim.starts_with("tokens")) return 32;
  if (dim == "rows") return 128;  // tokens of experts, with room to align them
  if (dim == "heads" || dim == "q_heads") return 32;
  if (dim == "kv_heads") return 8;
  if (dim == "head_dim") return 128;
  if (dim == "vocab") return 257;
  if (dim == "group_bounds" || dim == "topk" || dim == "seqs") return 2;
  if (dim == "experts" || dim == "leaves") return 8;
  if (dim == "pages" || dim == "page_size") return 16;
  if (dim == "max_pages" || dim == "parts") return 4;
  if (dim == kWorldSize) return 1;
  return 4096;
}

std::vector<int64_t> parse_sizes(const std::string& where, std::string_view text, int64_t least) {
  std::vector<int64_t> sizes;
  do {
    const size_t end = std::min(text.find(','), text.size());
    const std::string_view item = text.substr(0, end);
    if (item.find(':') != std::string_view::npos) {
      append_range(where, item, least, sizes);
    } else {
      if (sizes.size() >= kMaxSizes)
        throw InputError(where, fmt::format("lists more than {} sizes", kMaxSizes), "give fewer");
      sizes.push_back(parse_size(where, item, least));
    }
    if (end == text.size()) break;
    text.remove_prefix(end + 1);
  } while (true);
  return sizes;
}

std::vector<const Operator*> parse_operators(const std::string& where, const std::vector<std::string>& names) {
  if (is_all(names)) return {operators().begin(), operators().end()};
  std::vector<const Operator*> found;
  for (const std::string& name : names) {
    const Operator* op = find_operator(name);
    if (op == nullptr)
      unknown(where, "operator", name, names_of(operators(), [](const Operator* o) { return o->name; }));
    found.push_back(op);
  }
  return found;
}

namespace {

/// Whether an operator has a pass of this name.
bool is_pass(std::string_view name) {
  const auto all = operators();
  return std::any_of(all.begin(), all.end(), [&](const Operator* op) { return find_pass(*op, name) != nullptr; });
}

}  // namespace

bool lacks_pass(const Operator& op, const std::vector<std::string>& names) {
  return !is_all(names) && std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    return find_pass(op, name) == nullptr && is_pass(name);
  });
}

std::vector<const Pass*> parse_passes(const std::string& where, const Operator& op,
                                      const std::vector<std::string>& names) {
  std::vector<const Pass*> found;
  if (is_all(names)) {
    for (const Pass& pass : op.passes) found.push_back(&pass);
    return found;
  }
  for (const std::string& name : names) {
    const Pass* pass = find_pass(op, name);
    if (pass != nullptr) {
      found.push_back(pass);
    } else if (lacks_pass(op, names) || !is_pass(name)) {
      unknown(where, fmt::format("pass of {}", op.name), name,
              names_of(op.passes, [](const Pass& p) { return p.name; }));
    }
  }
  return found;
}

std::vector<DType> parse_dtypes(const std::string& where, const std::vector<std::string>& names) {
  if (is_all(names)) return {DType::f32, DType::bf16, DType::f16};
  std::vector<DType> found;
  for (const std::string& name : names) {
    const auto dtype = parse_dtype(name);
    if (!dtype || std::find(kCaseDTypes.begin(), kCaseDTypes.end(), *dtype) == kCaseDTypes.end())
      unknown(where, "floating-point dtype", name, {"fp32", "bf16", "fp16", "fp64"});
    found.push_back(*dtype);
  }
  return found;
}

InputMode parse_input_mode(const std::string& where, const std::string& name) {
  std::vector<std::string> known;
  for (const InputMode mode : kInputModes) {
    if (name == to_string(mode)) return mode;
    known.emplace_back(to_string(mode));
  }
  unknown(where, "input mode", name, known);
}

GradMode parse_grad_mode(const std::string& where, const std::string& name) {
  if (name == "random") return GradMode::random;
  if (name == "ones") return GradMode::ones;
  unknown(where, "gradient mode", name, {"random", "ones"});
}

std::vector<std::set<std::string, std::less<>>> parse_optionals(const std::string& where, const Operator& op,
                                                                const std::vector<const Operator*>& known,
                                                                const std::vector<std::string>& settings) {
  const auto of_all_passes = [](const Operator& each) {
    std::set<std::string, std::less<>> names;
    for (const Pass& pass : each.passes) {
      for (const std::string_view name : optionals_of(pass)) names.emplace(name);
    }
    return names;
  };
  std::set<std::string, std::less<>> all;
  for (const Operator* each : known) all.merge(of_all_passes(*each));
  const auto own = of_all_passes(op);
  std::vector<std::set<std::string, std::less<>>> result;
  for (const std::string& setting : settings) {
    std::set<std::string, std::less<>> present;
    for (size_t at = 0; setting != "none" && at <= setting.size();) {
      const size_t end = std::min(setting.find('+', at), setting.size());
      const std::string name = setting.substr(at, end - at);
      if (!all.contains(name)) {
        throw InputError(where, fmt::format("no selected operator has an optional input '{}'", name),
                         all.empty() ? "use none" : fmt::format("known: none, {}", fmt::join(all, ", ")));
      }
      if (own.contains(name)) present.insert(name);
      at = end + 1;
    }
    if (std::find(result.begin(), result.end(), present) == result.end()) result.push_back(present);
  }
  return result;
}

void set_bounds(const std::string& where, const std::vector<int64_t>& bounds, Sweep& sweep) {
  if (sweep.op->parallel_dim.empty())
    throw InputError(where, fmt::format("{} is not tensor-parallel", sweep.op->name), "leave it out");
  if (bounds.size() < 2)
    throw InputError(where, "expected 2 bounds or more, got 1", "begin with 0 and end with the size of the vocabulary");
  const std::vector<int64_t> ranks{std::ssize(bounds) - 1};
  const auto given = sweep.dims.find(kWorldSize);
  if (given != sweep.dims.end() && given->second != ranks) {
    throw InputError(where,
                     fmt::format("{} bounds are those of {} rank{}, but {} is {}", bounds.size(), ranks.front(),
                                 ranks.front() == 1 ? "" : "s", kWorldSize, fmt::join(given->second, ",")),
                     fmt::format("give one bound more than ranks, or leave out {}", kWorldSize));
  }
  sweep.data.part_bounds = bounds;
  sweep.dims[std::string(kWorldSize)] = ranks;
}

void expand(const Sweep& sweep, std::vector<Case>& cases) {
  if (sweep.optionals.empty()) throw std::invalid_argument("a sweep needs at least one set of optional inputs");
  const std::vector<PresetSizes> settings = distinct_settings(sweep);
  refuse_too_many(sweep, settings.size(), cases.size());
  std::vector<Case> sized;
  for (const PresetSizes& setting : settings) append_sized(sweep, setting, sized);
  for (const Pass* pass : sweep.passes) {
    for (const DType dtype : sweep.dtypes) {
      for (const auto& optionals : settings_of(*pass, sweep.optionals)) {
        for (Case c : sized) {
          c.pass = pass;
          c.dtype = dtype;
          c.optionals = optionals;
          validate(c);
          cases.push_back(std::move(c));
        }
      }
    }
  }
}

}  // namespace checkop
