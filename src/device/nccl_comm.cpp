// SPDX-License-Identifier: Apache-2.0
// Loads NCCL's functions by name, and polls communicators. Without NCCL's header, this file compiles to stubs.
#include "device/nccl_comm.hpp"

#include "base/clock.hpp"
#include "base/error.hpp"

#ifdef CHECK_OPERATOR_NCCL
#include <dlfcn.h>
#include <fmt/format.h>
#include <nccl.h>

#include <cstring>
#include <thread>

#include "device/device.hpp"

namespace checkop {
namespace {

/// The NCCL library. Candidates use the same one, because a process loads a library name only once.
struct Library {
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init = nullptr;
  decltype(&ncclCommGetAsyncError) async_error = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  decltype(&ncclGetLastError) last_error = nullptr;
  std::string why_none;

  Library() {
    void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      why_none = "libnccl.so.2 is not found";
      return;
    }
    load(library, "ncclGetUniqueId", get_unique_id);
    load(library, "ncclCommInitRankConfig", init);
    load(library, "ncclCommGetAsyncError", async_error);
    load(library, "ncclCommAbort", abort);
    load(library, "ncclGetErrorString", error_string);
    load(library, "ncclGetLastError", last_error);
  }

 private:
  template <class Function>
  void load(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr && why_none.empty())
      why_none = fmt::format("libnccl.so.2 has no {}: it is older than 2.14", name);
  }
};

const Library& nccl() {
  static const Library library;
  return library;
}

std::string words_of(ncclResult_t result, ncclComm_t comm) {
  const char* last = nccl().last_error(comm);
  const bool more = last != nullptr && *last != '\0';
  return fmt::format("NCCL: {}{}{}", nccl().error_string(result), more ? ": " : "", more ? last : "");
}

}  // namespace

std::string NcclComm::why_none() { return nccl().why_none; }

std::string NcclComm::make_id() {
  if (!why_none().empty()) throw EnvironmentError("ranks on CUDA devices talk through NCCL: " + why_none());
  ncclUniqueId id;
  if (const ncclResult_t result = nccl().get_unique_id(&id); result != ncclSuccess)
    throw EnvironmentError("make a communicator: " + words_of(result, nullptr));
  return {id.internal, sizeof(id.internal)};
}

NcclComm::NcclComm(const std::string& comm_id, int32_t rank, int32_t world_size, std::chrono::milliseconds limit) {
  ncclUniqueId id;
  if (!why_none().empty() || comm_id.size() != sizeof(id.internal))
    throw DeviceError(why_none().empty() ? "invalid NCCL unique id" : why_none(), /*sticky=*/false);
  std::memcpy(id.internal, comm_id.data(), sizeof(id.internal));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  ncclResult_t result = nccl().init(&comm, world_size, id, rank, &config);
  comm_ = comm;
  const auto fail = [&](const std::string& why) {
    abort();
    throw DeviceError(fmt::format("rank {} joins the communicator: {}", rank, why), /*sticky=*/false);
  };
  for (const auto until = Clock::now() + limit; result == ncclInProgress;) {
    if (Clock::now() > until)
      fail(fmt::format("not all ranks came within {} s", std::chrono::duration<double>(limit).count()));
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    const ncclResult_t asked = nccl().async_error(comm, &result);
    if (asked != ncclSuccess) result = asked;
  }
  if (result != ncclSuccess) fail(words_of(result, comm));
}

NcclComm::~NcclComm() { abort(); }

std::string NcclComm::error() {
  const std::lock_guard lock(mutex_);
  if (is_aborted_) return "its communicator was aborted";
  ncclResult_t result = ncclSuccess;
  auto* const comm = static_cast<ncclComm_t>(comm_);
  const ncclResult_t asked = nccl().async_error(comm, &result);
  if (asked != ncclSuccess) result = asked;
  return result == ncclSuccess || result == ncclInProgress ? "" : words_of(result, comm);
}

void NcclComm::abort() noexcept {
  const std::lock_guard lock(mutex_);
  if (is_aborted_) return;
  is_aborted_ = true;
  // Also after success: to finalize the communicator, all ranks would have to join once more.
  if (comm_ != nullptr) (void)nccl().abort(static_cast<ncclComm_t>(comm_));
}

}  // namespace checkop

#else

namespace checkop {

std::string NcclComm::why_none() { return "this program was built without NCCL"; }
std::string NcclComm::make_id() { throw EnvironmentError("ranks on CUDA devices talk through NCCL: " + why_none()); }
NcclComm::NcclComm(const std::string&, int32_t, int32_t, std::chrono::milliseconds) { make_id(); }
NcclComm::~NcclComm() { abort(); }
std::string NcclComm::error() { return why_none(); }
void NcclComm::abort() noexcept { is_aborted_ = true; }

}  // namespace checkop

#endif
