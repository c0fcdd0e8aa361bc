#include "megatron/base/machine/out_of_memory.h"

#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "megatron/base/error.h"
#include "megatron/base/files/path_error.h"
#include "megatron/base/machine/machine_memory.h"
#include "megatron/base/stack_frames.h"

namespace megatron {
namespace {

/// The number that stands before " bytes" in a message; "" where there is none.
std::string bytes_named(std::string_view text) {
  const std::size_t end = text.find(" bytes");
  if (end == std::string_view::npos) return "";
  std::size_t begin = end;
  while (begin > 0 && text[begin - 1] >= '0' && text[begin - 1] <= '9') --begin;
  return std::string(text.substr(begin, end - begin));
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

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  const std::string_view text = error.what();
  return text.find("can't allocate memory") != std::string_view::npos ||  // c10's DefaultCPUAllocator
         text.find("not enough memory: you tried to allocate") != std::string_view::npos ||
         text.find("CUDA out of memory") != std::string_view::npos;
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
  return is_out_of_memory(error) && !says_what_for ? out_of_memory_text("what this job works on", error)
                                                   : without_stack_frames(error.what());
}

std::string out_of_memory_text(const std::string& what, const std::exception& error) {
  const std::string bytes = bytes_named(error.what());
  return rule_got_fix(
      concat("Memory must hold ", what, "."),
      bytes.empty() ? "no more memory from the system" : concat("no ", bytes, " bytes more from the system"),
      concat(of_address_limit(),
             "a smaller model or micro batch, more ranks on more machines, or a machine with more memory; "
             "megatron plan RECIPE shows what a rank needs"));
}

}  // namespace megatron
