// SPDX-License-Identifier: Apache-2.0
// Builds the structs of a call.
#include "plugin_host/calls.hpp"

namespace checkop::host {

Call::Call(Unpacker& unpacker, const checkop_kernel& kernel, const Windows& windows, checkop_host_comm* comm,
           void* stream) {
  const auto address = [&]() -> void* {
    const auto place = unpacker.get<Place>();
    return place.window == 0 ? nullptr : windows.at(place.window) + place.offset;
  };
  call_.struct_size = sizeof call_;
  call_.n_inputs = unpacker.get<int32_t>();
  call_.n_outputs = unpacker.get<int32_t>();
  call_.n_attrs = unpacker.get<int32_t>();
  for (int32_t i = 0; i < call_.n_inputs + call_.n_outputs; ++i) {
    void* const data = address();
    const auto dtype = unpacker.get<int32_t>(), rank = unpacker.get<int32_t>();
    extents_.push_back(std::make_unique<int64_t[]>(2 * static_cast<size_t>(rank)));
    int64_t *const shape = extents_.back().get(), *const strides = shape + rank;
    for (int32_t d = 0; d < rank; ++d) {
      shape[d] = unpacker.get<int64_t>();
      strides[d] = unpacker.get<int64_t>();
    }
    tensors_.push_back({data, dtype, rank, shape, strides});
  }
  names_.reserve(static_cast<size_t>(call_.n_attrs));  // short texts move with their string
  for (int32_t i = 0; i < call_.n_attrs; ++i) {
    names_.emplace_back(unpacker.text());
    attrs_.push_back({names_.back().c_str(), unpacker.get<double>()});
  }
  call_.inputs = tensors_.data();
  call_.outputs = tensors_.data() + call_.n_inputs;
  call_.attrs = attrs_.data();
  call_.workspace = address();
  call_.workspace_bytes = unpacker.get<size_t>();
  call_.rank = unpacker.get<int32_t>();
  call_.world_size = unpacker.get<int32_t>();
  call_.shard_begin = unpacker.get<int64_t>();
  call_.shard_end = unpacker.get<int64_t>();
  call_.shard_total = unpacker.get<int64_t>();
  call_.message_bytes = unpacker.get<size_t>();
  message_.resize(call_.message_bytes + 1);  // a text without a NUL is terminated
  call_.message = message_.data();
  if (unpacker.get<bool>()) call_.host_comm = comm;
  call_.stream = stream;
  if (stream == nullptr) call_.comm = call_.host_comm;  // ranks on GPUs would communicate by NCCL
  call_.kernel = &kernel;
}

}  // namespace checkop::host
