#pragma once
#include <cstdint>
#include <vector>

// What a token is drawn from where few can be drawn: the likeliest tokens of a row of logits, which a GPU chooses.
namespace megatron::kernels {

constexpr int kMostShortlisted = 256;

/// The likeliest tokens, from the likeliest on, of equals the lower id first.
struct Shortlist {
  std::vector<std::int64_t> tokens = {};
  std::vector<double> logits = {};  ///< of them
  double all = 0;                   ///< phases/likelihood.h's sum over the row; 0 where it was not asked for
};

}  // namespace megatron::kernels
