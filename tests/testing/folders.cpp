#include "tests/testing/folders.h"

#include <cstdlib>

namespace megatron {

std::string tests_folder() { return MEGATRON_TEST_FOLDER; }

std::string unpacked_folder() { return MEGATRON_UNPACKED_FOLDER; }

std::string whole_data(const std::string& name) {
  const char* const folder = std::getenv("MEGATRON_TEST_DATA");
  return folder == nullptr ? "" : std::string(folder) + "/" + name;
}

}  // namespace megatron
