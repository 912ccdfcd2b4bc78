// SPDX-License-Identifier: Apache-2.0
// Defect: returns no table.
#include "check_operator.h"

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return nullptr; }
