#include "megatron/base/machine/huge_heap.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "tests/testing/sanitized.h"

namespace megatron {
namespace {

/// Whether the mapping around `address` is marked for huge pages, as the system says (proc(5): VmFlags, "hg").
bool wants_huge_pages(const void* address) {
  std::ifstream maps("/proc/self/smaps");
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    std::size_t end_of_begin = 0;
    if (line.find('-') < line.find(' ') && line.find(':') > line.find(' ')) {
      const std::uintptr_t begin = std::stoull(line, &end_of_begin, 16);
      inside = begin <= at && at < std::stoull(line.substr(end_of_begin + 1), nullptr, 16);
    }
    if (inside && line.rfind("VmFlags:", 0) == 0) return line.find(" hg") != std::string::npos;
  }
  return false;
}

/// What a job that begins would see: 0, or what is wrong.
int tables_after_use() {
  use_huge_pages_for_heap(std::size_t{32} << 20);
  std::vector<std::vector<char>> tables;
  for (char i = 0; i < 4; ++i) tables.emplace_back(std::size_t{5} << 20, i);
  for (char i = 0; i < 4; ++i) {
    const std::vector<char>& table = tables[static_cast<std::size_t>(i)];
    if (std::vector<char>(table.size(), i) != table) return 1;
  }
  if (kSanitized || !std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled").good()) return 0;
  return wants_huge_pages(tables[2].data() + tables[2].size() / 2) ? 0 : 2;
}

TEST(HugeHeap, TablesLieInPagesThatTheSystemMayMakeHuge) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // in a process of its own, whose heap is small yet
  EXPECT_EXIT(std::exit(tables_after_use()), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace megatron
