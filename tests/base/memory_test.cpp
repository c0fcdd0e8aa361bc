#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "megatron/base/machine/machine_memory.h"
#include "megatron/base/machine/out_of_memory.h"
#include "tests/testing/temporary_folder.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

/// A machine's /proc and /sys as files.
class Machine {
 public:
  Machine() { write("proc/meminfo", "MemTotal: 100000 kB\nMemAvailable:    50000 kB\nSwapFree: 1000 kB\n"); }
  void write(const fs::path& name, const std::string& text) const {
    fs::create_directories((folder_.path() / name).parent_path());
    std::ofstream(folder_.path() / name) << text;
  }
  std::uint64_t bytes() const { return machine_memory(folder_.path())->bytes; }
  std::uint64_t without_swap() const { return machine_memory(folder_.path())->without_swap; }
  std::string limit() const { return machine_memory(folder_.path())->limit; }
  const fs::path& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

TEST(MachineMemory, IsWhatTheSystemCanFreeWithSwap) {
  const Machine machine;
  EXPECT_EQ(machine.bytes(), 51000u * 1024);
  EXPECT_EQ(machine.without_swap(), 50000u * 1024);
  EXPECT_THAT(machine.limit(), HasSubstr("free"));
  fs::remove(machine.path() / "proc/meminfo");
  EXPECT_FALSE(machine_memory(machine.path()).has_value());
}

TEST(MachineMemory, IsBoundByTheGroupsOfVersion2UpToTheRoot) {
  const Machine machine;
  machine.write("proc/self/cgroup", "0::/job/step\n");
  machine.write("sys/fs/cgroup/job/step/memory.max", "max\n");
  machine.write("sys/fs/cgroup/job/step/memory.current", "5000\n");
  EXPECT_EQ(machine.bytes(), 51000u * 1024);
  machine.write("sys/fs/cgroup/job/memory.max", "1000000\n");
  machine.write("sys/fs/cgroup/job/memory.current", "700000\n");
  machine.write("sys/fs/cgroup/job/memory.stat", "anon 100\nfile 300000\ninactive_file 200000\n");
  EXPECT_EQ(machine.bytes(), 500000u) << "a file's cache is given back";
  EXPECT_EQ(machine.without_swap(), 500000u);
  EXPECT_THAT(machine.limit(), HasSubstr("control group, 1000000 bytes"));
  machine.write("sys/fs/cgroup/job/memory.current", "2000000\n");
  EXPECT_EQ(machine.bytes(), 0u);
}

TEST(MachineMemory, OfAContainerIsBoundByTheGroupAtTheMount) {
  const Machine machine;
  machine.write("proc/self/cgroup", "5:cpu:/docker/a\n4:memory:/docker/a\n");
  machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "4096\n");
  machine.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "96\n");
  EXPECT_EQ(machine.bytes(), 4000u);
}

std::string message(const std::function<void()>& work) {
  try {
    taking_memory_for("the model's weights", work);
  } catch (const OutOfMemory& e) {
    return e.what();
  }
  return "no error";
}

TEST(OutOfMemory, SaysWhatForAndHowMuch) {
  EXPECT_THAT(message([] { throw std::bad_alloc(); }), HasSubstr("Memory must hold the model's weights."));
  EXPECT_THAT(message([] { throw AllocationFailed(4096); }), HasSubstr("no 4096 bytes more"));
  // As libtorch says it.
  const auto of_c10 = [] {
    throw std::runtime_error(
        "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
        "allocate 400000000000 bytes. Error code 12 (Cannot allocate memory)\nframe #0: c10::ThrowEnforceNotMet");
  };
  EXPECT_THAT(message(of_c10), HasSubstr("no 400000000000 bytes more"));
  EXPECT_THAT(message(of_c10), Not(HasSubstr("frame")));
}

/// As c10's CUDA allocator (libtorch 2.11) writes it; `before` is what it says between total and allocated memory.
std::runtime_error of_cuda(const std::string& wanted, const std::string& before = "") {
  return std::runtime_error("CUDA out of memory. Tried to allocate " + wanted +
                            ". GPU 1 has a total capacity of 79.25 GiB of which 512.00 MiB is free. " + before +
                            "Of the allocated memory 77.50 GiB is allocated by PyTorch, and 20.25 MiB is reserved by "
                            "PyTorch but unallocated. If reserved but unallocated memory is large try setting "
                            "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.");
}

TEST(OutOfMemory, OfCudasAllocatorHasItsNumbers) {
  constexpr std::uint64_t kMiB = 1 << 20, kGiB = 1 << 30;
  for (const auto& [text, bytes] : {std::pair{"2.00 GiB", 2 * kGiB},
                                    {"1.50 MiB", kMiB * 3 / 2},
                                    {"20.00 KiB", std::uint64_t{20480}},
                                    {"512 bytes", std::uint64_t{512}}})
    for (const char* before : {"", "Including non-PyTorch memory, this process has 78.00 GiB memory in use. ",
                               "Process 71 has 3.10 GiB memory in use. 60.00 GiB allowed; "}) {
      const auto error = of_cuda(text, before);
      EXPECT_TRUE(is_out_of_memory(error));
      const Shortage shortage = shortage_of(error);
      EXPECT_EQ(shortage.wanted, bytes) << text;
      EXPECT_EQ(shortage.device, "GPU 1");
      EXPECT_EQ(shortage.total, 79 * kGiB + kGiB / 4);
      EXPECT_EQ(shortage.free, 512 * kMiB);
      EXPECT_EQ(shortage.held, 77 * kGiB + kGiB / 2);
    }
  const std::string said = message([] { throw of_cuda("2.00 GiB"); });
  EXPECT_THAT(said, HasSubstr("got:  no 2.15 GB more from GPU 1, of whose 85.1 GB are 537 MB free"));
  EXPECT_THAT(said, HasSubstr("a GPU with more memory"));
  EXPECT_THAT(said, Not(HasSubstr("ulimit")));
}

TEST(OutOfMemory, OfCudaWithoutNumbersNamesTheGpu) {
  for (const char* text :
       {"CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "CUDA driver error: out of memory", "CUDA out of memory. Tried to allocate more than 1EB memory.",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"}) {
    EXPECT_THAT(message([&] { throw std::runtime_error(text); }), HasSubstr("got:  no more memory from the GPU\n"))
        << text;
    EXPECT_EQ(shortage_of(std::runtime_error(text)).wanted, 0u) << text;
  }
  EXPECT_FALSE(is_out_of_memory(std::runtime_error("CUDA error: device-side assert triggered")));
}

TEST(OutOfMemory, SaysWhatWasPlannedAndWhatWouldFit) {
  const OutOfMemory error("the activations of a step", shortage_of(of_cuda("2.00 GiB")), "90 GB (parameters 90 GB)",
                          "--tp 2 (45 GB)");
  EXPECT_THAT(error.what(), HasSubstr("537 MB free; planned: 90 GB (parameters 90 GB)\n  fix:  --tp 2 (45 GB); "));
  EXPECT_EQ(message_of(error), error.what());
}

TEST(OutOfMemory, LeavesOtherErrorsAndNarrowerNames) {
  EXPECT_THROW(taking_memory_for("x", [] { throw std::logic_error("another"); }), std::logic_error);
  EXPECT_THAT(message([] { taking_memory_for("the optimizer's state", [] { throw std::bad_alloc(); }); }),
              HasSubstr("the optimizer's state"));
  EXPECT_EQ(taking_memory_for("x", [] { return 3; }), 3);
  EXPECT_EQ(message_of(std::runtime_error("text")), "text");
  EXPECT_THAT(message_of(std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again))),
              HasSubstr("must let the program start its threads"));
  EXPECT_THAT(message_of(std::bad_alloc()), HasSubstr("what this job works on"));
}

/// The errors of threads and of memory under a limit of addresses, and the limit as it was seen.
struct Limited {
  std::optional<AddressLimit> found;
  std::string threads, memory;
};

Limited under_limit(rlim_t bytes) {
  const auto of_threads = std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
  rlimit before{};
  getrlimit(RLIMIT_AS, &before);
  const rlimit limit{.rlim_cur = std::min(bytes, before.rlim_max), .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_AS, &limit);
  const Limited result{
      .found = address_limit(), .threads = message_of(of_threads), .memory = message_of(std::bad_alloc())};
  setrlimit(RLIMIT_AS, &before);
  return result;
}

TEST(OutOfMemory, NamesTheLimitOfAddressesWhereItLeavesLessThanTheMachine) {
  constexpr const char* kAdvice = "raise the limit of addresses (ulimit -v, now ";
  constexpr rlim_t kGenerous = rlim_t{1} << 46, kLeft = rlim_t{1} << 25;
  const Limited generous = under_limit(kGenerous);
  ASSERT_TRUE(generous.found.has_value());
  EXPECT_LE(generous.found->bytes, kGenerous);
  EXPECT_GT(generous.found->free_bytes, 0u);
  EXPECT_LT(generous.found->free_bytes, generous.found->bytes);
  const Limited tight = under_limit(generous.found->bytes - generous.found->free_bytes + kLeft);
  ASSERT_GT(machine_memory().value().bytes, kLeft);
  for (const std::string& text : {tight.threads, tight.memory}) EXPECT_THAT(text, HasSubstr(kAdvice));
  if (machine_memory().value().bytes <= generous.found->free_bytes) {
    for (const std::string& text : {generous.threads, generous.memory}) EXPECT_THAT(text, Not(HasSubstr(kAdvice)));
  }
}

}  // namespace
}  // namespace megatron
