#include "megatron/base/machine/out_of_memory.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/files/path_error.h"
#include "megatron/base/machine/machine_memory.h"
#include "megatron/base/progress.h"
#include "megatron/base/stack_frames.h"

namespace megatron {
namespace {

/// The bytes that follow `lead` in a message, as "400000000000 bytes", "2.00 GiB": what libtorch's format_size() and
/// its CPU allocators write. 0 where there are none.
std::uint64_t bytes_after(std::string_view text, std::string_view lead) {
  constexpr std::array<std::string_view, 5> kUnits{"bytes", "KiB", "MiB", "GiB", "TiB"};
  const std::size_t at = text.find(lead);
  if (at == std::string_view::npos) return 0;
  text.remove_prefix(at + lead.size());
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !(number >= 0)) return 0;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (!text.starts_with(' ')) return 0;
  text.remove_prefix(1);
  double unit = 1;
  for (const std::string_view name : kUnits) {
    if (text.starts_with(name)) return static_cast<std::uint64_t>(std::min(number * unit, 0x1p62));
    unit *= 1024;
  }
  return 0;
}

/// What helps where this process may not have more addresses; "" where memory bounds it before they do.
std::string of_address_limit() {
  constexpr std::uint64_t kUnit = 1024;  // of ulimit -v
  const auto limit = address_limit();
  if (!limit) return "";
  if (const auto machine = machine_memory(); machine && machine->bytes <= limit->free_bytes) return "";
  return concat("raise the limit of addresses (ulimit -v, now ", limit->bytes / kUnit, "), or ");
}

}  // namespace

AllocationFailed::AllocationFailed(std::size_t bytes) noexcept {
  // There may be no memory for a string.
  std::snprintf(text_, sizeof text_, "cannot take %zu bytes of memory", bytes);
}

OutOfMemory::OutOfMemory(std::string what, Shortage lack, const std::string& planned, const std::string& fix)
    : std::runtime_error(out_of_memory_text(what, lack, planned, fix)),
      holds(std::move(what)),
      shortage(std::move(lack)) {}

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  const std::string_view text = error.what();
  return std::ranges::any_of(
      std::array<std::string_view, 6>{
          "can't allocate memory",  // c10's DefaultCPUAllocator
          "not enough memory: you tried to allocate",
          "CUDA out of memory",         // its caching allocator
          "CUDA error: out of memory",  // of a call, as for a kernel's stack
          "CUDA driver error: out of memory",
          "CUBLAS_STATUS_ALLOC_FAILED",  // of a handle's workspace
      },
      [&](std::string_view said) { return text.find(said) != std::string_view::npos; });
}

Shortage shortage_of(const std::exception& error) {
  const std::string_view text = error.what();
  Shortage shortage;
  for (const std::string_view lead : {"Tried to allocate ", "tried to allocate ", "cannot take "})
    if (shortage.wanted == 0) shortage.wanted = bytes_after(text, lead);
  constexpr std::string_view kGpu = ". GPU ", kTotal = " has a total capacity of ";
  const std::size_t gpu = text.find(kGpu), total = text.find(kTotal);
  if (gpu != std::string_view::npos && total != std::string_view::npos && gpu < total) {
    shortage.device = text.substr(gpu + 2, total - gpu - 2);
    shortage.total = bytes_after(text, kTotal);
    shortage.free = bytes_after(text, " of which ");
    shortage.held = bytes_after(text, "Of the allocated memory ");
  } else if (text.find("CUDA") != std::string_view::npos || text.find("CUBLAS") != std::string_view::npos) {
    shortage.device = "the GPU";
  }
  return shortage;
}

std::string message_of(const std::exception& error) {
  if (const auto* const path = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) return path_error(*path);
  const bool says_what_for = dynamic_cast<const OutOfMemory*>(&error) != nullptr;
  const auto* const system = dynamic_cast<const std::system_error*>(&error);
  if (system != nullptr && system->code() == std::errc::resource_unavailable_try_again)  // of std::thread
    return rule_got_fix(
        "The system must let the program start its threads.", error.what(),
        concat(of_address_limit(),
               "raise the limit of processes (ulimit -u, a container's limit of pids), or start fewer ranks and "
               "threads"));
  return is_out_of_memory(error) && !says_what_for ? out_of_memory_text("what this job works on", shortage_of(error))
                                                   : without_stack_frames(error.what());
}

std::string out_of_memory_text(const std::string& holds, const Shortage& shortage, const std::string& planned,
                               const std::string& fix) {
  const bool on_gpu = !shortage.device.empty();
  std::string got = "no more memory";
  if (shortage.wanted > 0)
    got = on_gpu ? concat("no ", human_bytes(static_cast<double>(shortage.wanted)), " more")
                 : concat("no ", shortage.wanted, " bytes more");
  got += concat(" from ", on_gpu ? shortage.device : "the system");
  if (shortage.total > 0)
    got += concat(", of whose ", human_bytes(static_cast<double>(shortage.total)), " are ",
                  human_bytes(static_cast<double>(shortage.free)), " free");
  if (!planned.empty()) got += concat("; planned: ", planned);
  const char* const usual =
      on_gpu ? "a smaller model or micro batch, more ranks, each with a GPU, or a GPU with more memory; "
             : "a smaller model or micro batch, more ranks on more machines, or a machine with more memory; ";
  return rule_got_fix(concat("Memory must hold ", holds, "."), got,
                      concat(on_gpu ? "" : of_address_limit(), fix.empty() ? usual : concat(fix, "; "),
                             "megatron plan RECIPE shows what a rank needs"));
}

}  // namespace megatron
