#include "megatron/base/files/mapped_faults.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "megatron/base/text/printable.h"

namespace megatron {
namespace {

constexpr std::size_t kMaxMappings = 2048, kMaxPath = 512;

/// `begin` is written last and cleared first: the handler reads a slot that has one.
struct NotedMapping {
  std::atomic<bool> taken = false;
  std::atomic<std::uintptr_t> begin = 0;
  std::atomic<std::size_t> size = 0;
  std::array<char, kMaxPath> path = {};   // as the system knows it, for stat()
  std::array<char, kMaxPath> shown = {};  // as it may be printed
};

// A signal handler can reach nothing else. Beyond kMaxMappings a file has no name in the message.
std::array<NotedMapping, kMaxMappings> mappings;
static_assert(std::atomic<std::uintptr_t>::is_always_lock_free, "a signal handler may touch no lock");

void copy_text(std::array<char, kMaxPath>& to, std::string_view text) {
  const std::size_t length = std::min(text.size(), to.size() - 1);
  std::memcpy(to.data(), text.data(), length);
  to[length] = '\0';
}

const NotedMapping* mapping_of(std::uintptr_t address) {
  for (const NotedMapping& mapping : mappings) {
    const std::uintptr_t begin = mapping.begin.load(std::memory_order_acquire);
    if (begin != 0 && address >= begin && address - begin < mapping.size.load(std::memory_order_relaxed))
      return &mapping;
  }
  return nullptr;
}

/// A message made in place: a handler may not take memory.
class Message {
 public:
  void add(std::string_view text) {
    const std::size_t length = std::min(text.size(), text_.size() - length_);
    std::memcpy(text_.data() + length_, text.data(), length);
    length_ += length;
  }
  void add(std::uint64_t number) {
    std::array<char, 20> digits;
    std::size_t first = digits.size();
    do {
      digits[--first] = static_cast<char>('0' + number % 10);
      number /= 10;
    } while (number > 0);
    add({digits.data() + first, digits.size() - first});
  }
  void write() const {
    for (std::size_t done = 0; done < length_;) {
      const ssize_t written = ::write(STDERR_FILENO, text_.data() + done, length_ - done);
      if (written <= 0) return;
      done += static_cast<std::size_t>(written);
    }
  }

 private:
  std::array<char, 2 * kMaxPath> text_ = {};
  std::size_t length_ = 0;
};

void on_fault(int signal, siginfo_t* info, void*) {
  const NotedMapping* const mapping = mapping_of(reinterpret_cast<std::uintptr_t>(info->si_addr));
  if (mapping == nullptr) {  // returns to the fault, which now ends the process
    struct sigaction standard = {};
    standard.sa_handler = SIG_DFL;
    sigaction(signal, &standard, nullptr);
    return;
  }
  struct stat now {};
  const bool known = ::stat(mapping->path.data(), &now) == 0;
  const auto was = static_cast<std::uint64_t>(mapping->size.load(std::memory_order_relaxed));
  const auto size = static_cast<std::uint64_t>(now.st_size);
  Message message;
  message.add(mapping->shown.data());
  message.add(": a file must stay as it is while it is read.\n  got:  ");
  if (known && size < was) {
    message.add("cut off from ");
    message.add(was);
    message.add(" to ");
    message.add(size);
    message.add(" bytes meanwhile\n  fix:  restore the file, then start again\n");
  } else {
    message.add("bytes that the system cannot read, of ");
    message.add(was);
    message.add("\n  fix:  check the disk and restore the file, then start again\n");
  }
  message.write();
  ::_exit(1);
}

}  // namespace

void note_mapping(const void* address, std::size_t size, const std::filesystem::path& path) {
  for (NotedMapping& mapping : mappings) {
    bool taken = false;
    if (!mapping.taken.compare_exchange_strong(taken, true)) continue;
    copy_text(mapping.path, path.native());
    copy_text(mapping.shown, printable(path.native()));
    mapping.size.store(size, std::memory_order_relaxed);
    mapping.begin.store(reinterpret_cast<std::uintptr_t>(address), std::memory_order_release);
    return;
  }
}

void forget_mapping(const void* address) {
  for (NotedMapping& mapping : mappings) {
    if (mapping.begin.load(std::memory_order_relaxed) != reinterpret_cast<std::uintptr_t>(address)) continue;
    mapping.begin.store(0, std::memory_order_release);
    mapping.taken.store(false);
    return;
  }
}

void explain_mapped_faults() {
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace megatron
