// SPDX-License-Identifier: Apache-2.0
// Shell completion, made of the flags as they are defined.
#include "cli/completion.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "case/case.hpp"
#include "case/preset.hpp"
#include "case/sweep.hpp"
#include "cli/options.hpp"

namespace checkop {
namespace {

template <typename Range>
std::string names_of(const Range& range) {
  std::string names;
  for (const auto& item : range) names += fmt::format(" {}", item->name);
  return names;
}

std::string input_modes() {
  std::string names;
  for (const InputMode mode : kInputModes) names += fmt::format("{}{}", names.empty() ? "" : " ", to_string(mode));
  return names;
}

/// Values of flags that take names. In a comma list each part is completed.
std::map<std::string, std::string> values_of_flags() {
  std::string presets;
  for (const Preset& preset : shipped_models()) presets += " " + preset.name;
  return {{"--op", "all" + names_of(operators())},
          {"--dtype", "all fp32 bf16 fp16 fp64"},
          {"--pass", "all forward backward"},
          {"--device", "auto cpu cuda"},
          {"--preset", "all" + presets},
          {"--suite", fmt::format("{}", fmt::join(shipped_suites(), " "))},
          {"--input-mode", input_modes()},
          {"--grad-mode", "random ones"},
          {"--check", "accuracy invariance determinism memory"},
          {"--class", fmt::format("{}", fmt::join(class_names(), " "))},
          {"--save", "incorrect all"},
          {"--timing", "burst sustained"},
          {"--gold-rows", "all"},
          {"--color", "auto always never"}};
}

/// The commands below `app`, "contract" and "contract explain", with what may follow each.
void add_commands(const CLI::App& app, const std::string& name, std::map<std::string, std::string>& words) {
  std::string& own = words[name];
  for (const CLI::App* each : app.get_subcommands({})) own += " " + each->get_name();
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& flag : option->get_lnames()) own += " --" + flag;
  }
  for (const CLI::App* each : app.get_subcommands({}))
    add_commands(*each, name.empty() ? each->get_name() : name + " " + each->get_name(), words);
}

}  // namespace

std::string completion_script(const CLI::App& app, const std::string& shell) {
  std::map<std::string, std::string> words;
  add_commands(app, "", words);
  words["show"] += names_of(operators());
  words["completion"] += " bash zsh";
  words["import"] += " --workload --uuid --solution --root --device --contract --seed --report --help";
  std::string commands, after_command, after_flag;
  for (const auto& [command, list] : words) {
    if (!command.empty()) commands += fmt::format("{}'{}'", commands.empty() ? "" : "|", command);
    after_command += fmt::format("    '{}') words='{}' ;;\n", command, list.substr(list.find_first_not_of(' ')));
  }
  for (const auto& [flag, list] : values_of_flags()) after_flag += fmt::format("    {}) words='{}' ;;\n", flag, list);
  const std::string head =
      shell == "zsh" ? "#compdef check_operator\nautoload -U +X bashcompinit && bashcompinit\n" : "";
  return fmt::format(
      R"({head}# Completion of check_operator for {shell}. Names of files complete where no word fits.
_check_operator() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} command= words= head= i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case "${{command:+$command }}${{COMP_WORDS[i]}}" in
      {commands}) command="${{command:+$command }}${{COMP_WORDS[i]}}" ;;
    esac
  done
  case $previous in
{after_flag}  esac
  if [[ -n $words ]]; then
    [[ $word == *,* ]] && head=${{word%,*}},
  else
    case $command in
{after_command}    esac
  fi
  COMPREPLY=($(compgen -P "$head" -W "$words" -- "${{word##*,}}"))
}}
complete -o default -F _check_operator check_operator
)",
      fmt::arg("head", head), fmt::arg("shell", shell), fmt::arg("commands", commands),
      fmt::arg("after_flag", after_flag), fmt::arg("after_command", after_command));
}

}  // namespace checkop
