// SPDX-License-Identifier: Apache-2.0
// For tests of messages: the whole text of an error.
#pragma once

#include <exception>
#include <string>

namespace checkop {

/// what() of the exception that `body` throws; "no error" if it throws none.
template <class Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace checkop
