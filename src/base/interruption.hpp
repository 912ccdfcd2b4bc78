// SPDX-License-Identifier: Apache-2.0
// SIGINT and SIGTERM as a request to end in good order.
#pragma once

namespace checkop {

/// Thrown out of work that is left because of a signal.
struct Interrupted {};

/// From here on the first SIGINT or SIGTERM is noted; the second one ends the process as it would without this, unless
/// `all` are noted. A signal that the process was started to ignore stays ignored.
void note_interruptions(bool all = false);

/// "SIGINT" or "SIGTERM" once one came, otherwise "".
const char* interruption();

/// Throws Interrupted once a signal came.
void stop_if_interrupted();

}  // namespace checkop
