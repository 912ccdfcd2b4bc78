// SPDX-License-Identifier: Apache-2.0
// SIGINT and SIGTERM as requests for an orderly end.
#pragma once

namespace checkop {

/// Thrown to abandon work after a signal.
struct Interrupted {};

/// Installs the handlers. The first SIGINT or SIGTERM is recorded; the second one ends the process by default action,
/// unless `all` are to be recorded. Signals that the process was started to ignore stay ignored.
void note_interruptions(bool all = false);

/// The recorded signal, "SIGINT" or "SIGTERM"; "" before one arrived.
const char* interruption();

/// Throws Interrupted after a signal arrived.
void stop_if_interrupted();

}  // namespace checkop
