#pragma once
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "tests/testing/folders.h"

/// A file of tests/golden/plan/, or of golden/plan/ in its archive, written by megatron-core.
inline nlohmann::json golden(const std::string& name) {
  std::ifstream file(megatron::tests_folder() + "/golden/plan/" + name);
  if (!file) file.open(megatron::unpacked_folder() + "/golden/plan/" + name);
  if (!file) throw std::runtime_error("tests/golden/plan/" + name + " is missing");
  return nlohmann::json::parse(file);
}
