// SPDX-License-Identifier: Apache-2.0
// Errors that end a run: InputError for a wrong input (exit 2), EnvironmentError for a lacking machine (exit 5).
#pragma once

#include <stdexcept>
#include <string>

namespace checkop {

/// The user's input is wrong. what() reads "WHERE: WHAT; HINT": the place, what is wrong with which value, what to do.
/// The message is always one line of limited length: control characters are escaped, and the middle of a part longer
/// than 1000 bytes is left out.
class InputError : public std::runtime_error {
 public:
  InputError(const std::string& where, const std::string& what, const std::string& hint = "");
};

/// The machine lacks something that the user asked for: a GPU, a device number, a build with CUDA.
class EnvironmentError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace checkop
