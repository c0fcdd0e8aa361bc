#pragma once
#include <stdexcept>
#include <string>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/comm/group.h"

// What every transport must do, as functions that each rank runs and that throw where it does not. They run in threads
// and in child processes alike, hence no GoogleTest in them.
namespace megatron::comm::contract {

#define REQUIRE_THAT(condition, ...)                                                                                 \
  do {                                                                                                               \
    if (!(condition)) throw std::runtime_error(concat(__FILE__, ":", __LINE__, ": ", #condition, " ", __VA_ARGS__)); \
  } while (false)

struct Clause {
  const char* name;  ///< reads as a sentence
  void (*body)(const Group& world);
};

/// All of them; each works on any number of ranks.
const std::vector<Clause>& clauses();

}  // namespace megatron::comm::contract
