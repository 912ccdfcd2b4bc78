// SPDX-License-Identifier: Apache-2.0
// In place of device/cuda_guest.cpp in a build without CUDA, which never asks for a GPU.
#include "base/error.hpp"
#include "device/guest.hpp"

namespace checkop {

std::unique_ptr<GuestDevice> open_guest_device(int) {
  // lint: allow message, no owner asks for it
  throw EnvironmentError("this program was built without CUDA");
}

}  // namespace checkop
