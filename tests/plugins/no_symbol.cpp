// SPDX-License-Identifier: Apache-2.0
// Defect: the entry point is missing, as when CHECKOP_EXPORT was forgotten.
extern "C" __attribute__((visibility("default"))) int check_operator_plugins() { return 0; }
