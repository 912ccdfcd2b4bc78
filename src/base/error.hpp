// SPDX-License-Identifier: Apache-2.0
// Errors that end a run: the question can't be asked (exit 2) or the environment lacks what was asked for (exit 5).
#pragma once

#include <stdexcept>
#include <string>

namespace checkop {

/// The user's input is wrong. what() reads "WHERE: WHAT; HINT": where it stands, what is wrong with its value, what to
/// do. It is one line of bearable length, whatever a file put into its parts: control characters are escaped, and of a
/// part beyond 1000 bytes the middle is left out.
class InputError : public std::runtime_error {
 public:
  InputError(const std::string& where, const std::string& what, const std::string& hint = "");
};

/// The machine lacks what was asked for: no GPU, no such device, a build without CUDA.
class EnvironmentError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace checkop
