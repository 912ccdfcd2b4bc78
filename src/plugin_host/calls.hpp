// SPDX-License-Identifier: Apache-2.0
// A kernel's call as bytes, and the structs that are made of it in the plugin's process.
#pragma once

#include <memory>
#include <vector>

#include "abi/check_operator.h"
#include "plugin_host/windows.hpp"
#include "plugin_host/wire.hpp"

namespace checkop::host {

/// Where a pointer of a call points: a window and the distance from its begin. Window 0 stands for a null pointer.
struct Place {
  uint64_t window = 0, offset = 0;
};

/// Packs a call without its communicators. `place` translates its pointers.
template <class PlaceOf>
void pack_call(Packer& packer, const checkop_call& call, const PlaceOf& place) {
  packer.put(call.n_inputs).put(call.n_outputs).put(call.n_attrs);
  for (const auto& [tensors, n] : {std::pair{call.inputs, call.n_inputs}, {call.outputs, call.n_outputs}}) {
    for (int32_t i = 0; i < n; ++i) {
      packer.put(place(tensors[i].data)).put(tensors[i].dtype).put(tensors[i].rank);
      for (int32_t d = 0; d < tensors[i].rank; ++d) packer.put(tensors[i].shape[d]).put(tensors[i].strides[d]);
    }
  }
  for (int32_t i = 0; i < call.n_attrs; ++i) packer.text(call.attrs[i].name).put(call.attrs[i].value);
  packer.put(place(call.workspace)).put(call.workspace_bytes);
  packer.put(call.rank).put(call.world_size).put(call.shard_begin).put(call.shard_end).put(call.shard_total);
  packer.put(call.message_bytes).put(call.host_comm != nullptr);
}

/// The structs of one call.
class Call {
 public:
  /// `comm` is the communicator, if the call has one. `stream` is that of a GPU.
  Call(Unpacker& unpacker, const checkop_kernel& kernel, const Windows& windows, checkop_host_comm* comm,
       void* stream = nullptr);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  const checkop_call* get() const { return &call_; }
  bool has_comm() const { return call_.host_comm != nullptr; }
  std::string message() const { return message_.data(); }

 private:
  std::vector<checkop_tensor> tensors_;
  std::vector<std::unique_ptr<int64_t[]>> extents_;
  std::vector<std::string> names_;
  std::vector<checkop_attr> attrs_;
  std::vector<char> message_;
  checkop_call call_{};
};

}  // namespace checkop::host
