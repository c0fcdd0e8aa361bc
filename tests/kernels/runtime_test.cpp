#include "megatron/kernels/runtime.h"

#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <omp.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/machine/cores.h"
#include "megatron/base/machine/machine_memory.h"
#include "megatron/kernels/cpu/allocator.h"
#include "megatron/kernels/cpu/isa.h"
#include "megatron/kernels/matmul.h"

namespace megatron::kernels {
namespace {

/// The cores that the calling thread may run on.
std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

/// In a thread of its own, so that the tests' own thread stays free.
void in_a_thread(const std::function<void()>& work) { std::thread(work).join(); }

TEST(BindThreads, GivesEachThreadOfARankThatHasAllCoresOneOfItsOwn) {
  const std::vector<int>& all = core_numbers();
  const auto count = static_cast<int>(all.size());
  if (count < 2) {  // one thread needs no core of its own
    EXPECT_FALSE(bind_threads(count, 0, 1));
    return;
  }
  in_a_thread([&] {
    configure_thread(count);
    ASSERT_TRUE(bind_threads(count, 0, 1));
    std::vector<std::vector<int>> of_thread(all.size());
#pragma omp parallel num_threads(count)
    of_thread[static_cast<std::size_t>(omp_get_thread_num())] = allowed_cores();
    std::vector<int> taken;
    for (const std::vector<int>& cores : of_thread) {
      ASSERT_EQ(cores.size(), 1u);
      taken.push_back(cores[0]);
    }
    std::ranges::sort(taken);
    EXPECT_EQ(taken, all);
    std::vector<int> of_new_thread;
    std::thread([&] { of_new_thread = allowed_cores(); }).join();
    EXPECT_EQ(of_new_thread, all) << "whoever saves or reads ahead keeps out of the way";
    EXPECT_EQ(core_numbers(), all);
  });
}

TEST(BindThreads, LeavesThreadsToTheSystemWhereTheyDoNotFillTheCores) {
  const auto count = static_cast<int>(core_numbers().size());
  in_a_thread([&] {
    EXPECT_FALSE(bind_threads(1, 0, count)) << "a rank of one thread waits for no thread of its own";
    EXPECT_FALSE(bind_threads(count + 1, 0, 1));
    EXPECT_FALSE(bind_threads(2 * count, 1, 3));
    EXPECT_EQ(allowed_cores(), core_numbers());
  });
}

TEST(HugePageHeap, HandsOutDistinctAlignedBlocksUnderAnyOrderOfCalls) {
  cpu::HugePageHeap heap;
  std::mt19937 random(1);
  struct Live {
    unsigned char* data;
    std::size_t size;
    unsigned char mark;
  };
  std::vector<Live> live;
  const auto check_and_release = [&](const Live& block) {
    for (std::size_t i = 0; i < block.size; i += 61) ASSERT_EQ(block.data[i], block.mark);
    ASSERT_EQ(block.data[block.size - 1], block.mark);
    heap.release(block.data);
  };
  for (int step = 0; step < 4000; ++step) {
    if (live.size() > 60 || (!live.empty() && random() % 3 == 0)) {
      std::swap(live[random() % live.size()], live.back());
      check_and_release(live.back());
      live.pop_back();
      continue;
    }
    const std::size_t size = 1 + random() % (std::size_t{1} << (random() % 21));
    auto* data = static_cast<unsigned char*>(heap.allocate(size));
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(data) % 64, 0u);
    const auto mark = static_cast<unsigned char>(step);
    std::memset(data, mark, size);
    live.push_back({data, size, mark});
  }
  for (const Live& block : live) check_and_release(block);
  EXPECT_EQ(heap.stats().allocated_bytes, 0);
}

/// In a process of its own, with a limit of addresses: whether a heap leaves the others half of them, and takes some.
[[noreturn]] void make_heap_under_limit() {
  constexpr std::size_t kLeft = std::size_t{1} << 32;
  rlimit limit{};
  getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = std::size_t{1} << 46;  // any, to learn what is taken
  setrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = limit.rlim_cur - address_limit()->free_bytes + kLeft;
  setrlimit(RLIMIT_AS, &limit);
  const cpu::HugePageHeap heap;
  const std::size_t left = address_limit()->free_bytes;
  _exit(left >= kLeft / 2 - (std::size_t{8} << 20) && left < kLeft * 7 / 8 ? 0 : 1);
}

TEST(HugePageHeap, LeavesOthersHalfOfWhatALimitOfAddressesLeaves) {
  EXPECT_EXIT(make_heap_under_limit(), ::testing::ExitedWithCode(0), "");
}

TEST(HugePageHeap, JoinsNeighboursSoThatAFreedHeapHoldsOneLargeBlockAgain) {
  cpu::HugePageHeap heap;
  std::vector<void*> parts;
  for (int i = 0; i < 64; ++i) parts.push_back(heap.allocate(1 << 20));
  const std::int64_t reserved = heap.stats().reserved_bytes;
  for (std::size_t i = 0; i < parts.size(); i += 2) heap.release(parts[i]);
  for (std::size_t i = 1; i < parts.size(); i += 2) heap.release(parts[i]);
  void* whole = heap.allocate(std::size_t{64} << 20);
  EXPECT_EQ(heap.stats().reserved_bytes, reserved);
  heap.release(whole);
}

TEST(HugePageHeap, ASteadyStepReservesNothingNew) {
  cpu::HugePageHeap heap;
  std::mt19937 random(2);
  std::vector<std::size_t> sizes(200);
  for (std::size_t& size : sizes) size = 1 + random() % (8 << 20);
  const auto step = [&] {
    std::vector<void*> live;
    for (const std::size_t size : sizes) {
      live.push_back(heap.allocate(size));
      if (live.size() % 3 == 0) {
        heap.release(live[live.size() / 2]);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(live.size() / 2));
      }
    }
    for (void* block : live) heap.release(block);
  };
  step();
  const MemoryStats first = heap.stats();
  for (int i = 0; i < 5; ++i) step();
  EXPECT_EQ(heap.stats().reserved_bytes, first.reserved_bytes);
  EXPECT_EQ(heap.stats().peak_bytes, first.peak_bytes);
  EXPECT_LE(static_cast<double>(first.reserved_bytes), 1.3 * static_cast<double>(first.peak_bytes));
}

TEST(HugePageHeap, ServesManyThreads) {
  cpu::HugePageHeap heap;
  std::vector<std::thread> threads;
  for (unsigned id = 0; id < 4; ++id) {
    threads.emplace_back([&heap, id] {
      std::mt19937 random(id);
      for (int i = 0; i < 2000; ++i) {
        const std::size_t size = 8 + random() % 20000;
        auto* data = static_cast<unsigned*>(heap.allocate(size));
        data[0] = data[size / sizeof(unsigned) - 1] = id;
        ASSERT_EQ(data[0], id);
        heap.release(data);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(heap.stats().allocated_bytes, 0);
}

TEST(HugePageHeap, SaysWhenMemoryIsOut) {
  cpu::HugePageHeap heap;
  EXPECT_THROW(heap.allocate(std::size_t{1} << 60), std::bad_alloc);
  EXPECT_EQ(heap.allocate(0), nullptr);
  heap.release(nullptr);
}

TEST(CachingAllocator, AWeightGradientGoesIntoItsBufferWithoutACopyOfIt) {
  install_caching_allocator();
  configure_thread(1);
  const std::int64_t outputs = 1600, inputs = 960, bytes = 4 * outputs * inputs;
  const at::Tensor x = at::randn({64, 2, inputs}), dy = at::randn({64, 2, outputs});
  const at::Tensor buffer = at::zeros({outputs * inputs + 16});
  const at::Tensor grad = buffer.narrow(0, 16, outputs * inputs).view({outputs, inputs});
  const MemoryStats before = memory_stats();
  EXPECT_GE(before.allocated_bytes, 4 * 64 * 2 * (inputs + outputs) + bytes);
  linear_weight_gradient(grad, dy, x, 0.0);
  linear_weight_gradient(grad, dy, x, 1.0);
  // Own products have scratch that no shape makes larger; libtorch's none.
  EXPECT_LE(memory_stats().peak_bytes - before.peak_bytes, cpu::own_float32_products() ? bytes / 2 : 0);
  EXPECT_EQ(memory_stats().allocated_bytes, before.allocated_bytes);
}

TEST(InstructionSet, CanBeForcedAndRefusesWhatIsNotThere) {
  force_instruction_set("reference");
  EXPECT_EQ(instruction_set(), "reference");
  EXPECT_THROW(force_instruction_set("mmx"), ConfigError);
  EXPECT_EQ(instruction_set(), "reference");
  force_instruction_set("auto");
}

TEST(ConfigureThread, FlushesDenormalsInTheThreadThatAsks) {
  std::thread([] {
    configure_thread(1);
    volatile float tiny = 1e-30f;
    EXPECT_EQ(tiny * tiny * 1e20f, 0.0f);
    volatile float denormal = 1e-38f;
    EXPECT_EQ(denormal * 0.1f, 0.0f);
  }).join();
}

TEST(ConfigureThread, FlushesDenormalsInItsOpenMpWorkers) {
  std::thread([] {  // a thread without workers as yet
    configure_thread(2);
    std::array<float, 2> results{1, 1};
#pragma omp parallel num_threads(2)
    {
      volatile float denormal = 1e-38f;
      results[static_cast<std::size_t>(omp_get_thread_num())] = denormal * 0.1f;
    }
    EXPECT_EQ(results[0], 0.0f) << "the thread itself";
    EXPECT_EQ(results[1], 0.0f) << "its worker";
  })
      .join();
}

/// Has handed out 3 GB of its device number 1, and once 5 GB.
struct CountingAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(std::size_t) override { return {}; }
  void copy_data(void*, const void*, std::size_t) const override {}
  bool initialized() override { return is_initialized; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto& all = stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    if (device == 1) all.increase(5'000'000'000), all.decrease(2'000'000'000);
    stats.reserved_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)].increase(4'000'000'000);
    return stats;
  }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    if (device == 2) return c10::DeviceAllocator::getMemoryInfo(device);  // does not tell
    return {6'000'000'000, 80'000'000'000};
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
  bool is_initialized = true;
};

CountingAllocator& installed_allocator() {
  static CountingAllocator allocator;
  c10::SetAllocator(c10::DeviceType::PrivateUse1, &allocator);
  return allocator;
}

TEST(FreeMemory, OfADeviceIsWhatItTellsAndWhatItsAllocatorKeeps) {
  CountingAllocator& allocator = installed_allocator();
  const auto memory = free_memory({c10::DeviceType::PrivateUse1, 1});
  ASSERT_TRUE(memory.has_value());
  EXPECT_EQ(memory->bytes, 7'000'000'000) << "6 free, and of 4 reserved 3 are held";
  EXPECT_EQ(memory->total_bytes, 80'000'000'000);
  allocator.is_initialized = false;  // nothing was taken yet, and nothing is counted
  EXPECT_EQ(free_memory({c10::DeviceType::PrivateUse1, 1})->bytes, 6'000'000'000);
  allocator.is_initialized = true;
}

TEST(FreeMemory, IsNotKnownOfACpuNorOfADeviceThatDoesNotTell) {
  installed_allocator();
  EXPECT_FALSE(free_memory(at::kCPU).has_value());
  EXPECT_FALSE(free_memory({c10::DeviceType::PrivateUse1, 2}).has_value());
}

TEST(HeldMemory, OfADeviceIsWhatItsAllocatorCountsNotTheHosts) {
  installed_allocator();
  const HeldMemory held = held_memory({c10::DeviceType::PrivateUse1, 1});
  EXPECT_EQ(held.bytes, 3'000'000'000);
  EXPECT_EQ(held.peak_bytes, 5'000'000'000);
  EXPECT_EQ(held_memory({c10::DeviceType::PrivateUse1, 0}).bytes, 0);
}

TEST(HeldMemory, OfACpuIsTheProcesss) {
  malloc_trim(0);  // what other tests freed would serve the tensor
  const HeldMemory before = held_memory(at::kCPU);
  EXPECT_GT(before.bytes, 1 << 20);
  const at::Tensor large = at::zeros({1 << 26}, at::kByte);
  const HeldMemory held = held_memory(at::kCPU);
  EXPECT_GE(held.bytes, before.bytes + (1 << 25));
  EXPECT_GE(held.peak_bytes, before.bytes + (1 << 25));
}

TEST(HeldMemory, OfACpuIsNeverMoreThanItsPeak) {
  std::vector<at::Tensor> grown;
  for (int i = 0; i < 2000; ++i) {
    grown.push_back(at::zeros({1 << 14}, at::kByte));
    const HeldMemory held = held_memory(at::kCPU);
    ASSERT_GE(held.peak_bytes, held.bytes) << i;
  }
}

}  // namespace
}  // namespace megatron::kernels
