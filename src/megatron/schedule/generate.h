#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/schedule/passes.h"
#include "megatron/schedule/program.h"
#include "megatron/schedule/simulate.h"

// Generators: Shape -> Program of computations alone. Pure functions; any number of microbatches >= 1.
namespace megatron::schedule {

struct Shape {
  int num_ranks = 1;
  int num_chunks = 1;  ///< stages a rank
  int num_microbatches = 1;
  int microbatch_group = 0;  ///< interleaved: microbatches that one chunk takes before the next does; 0: num_ranks
};

Program accumulate(const Shape& shape);      ///< no pipeline: forward and backward of each microbatch in turn
Program gpipe(const Shape& shape);           ///< Huang et al. 2019
Program one_f_one_b(const Shape& shape);     ///< Narayanan et al. 2019, 2021
Program interleaved(const Shape& shape);     ///< Narayanan et al. 2021, section 2.2
Program forward_only(const Shape& shape);    ///< evaluation, looped placement
Program zero_bubble_h1(const Shape& shape);  ///< Qi et al. 2023
Program zero_bubble_v(const Shape& shape);   ///< Qi et al. 2024; two chunks, V-shaped placement

/// Evaluation of a model that lies on ranks in another way, such as V-shaped.
Program forward_only(const Placement& placement, int num_microbatches);

enum class Name : std::uint8_t { Auto, GPipe, OneFOneB, Interleaved, ZeroBubbleH1, ZeroBubbleV };

/// "auto", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v". Throws ConfigError that lists them and names the nearest.
Name name_of(const std::string& text);
bool is_name(const std::string& text);
std::string to_string(Name name);

/// The program of that name (one rank and one chunk: accumulate). Throws ConfigError where the shape does not suit it.
Program generate(Name name, const Shape& shape);

/// A way to cut the model that choose() may take.
struct Candidate {
  Shape shape;
  Costs costs;
  /// By stage: bytes beside the activations while its backward runs (recomputed layers); empty: none. A rank needs the
  /// most of its stages' at its peak.
  std::vector<double> backward_bytes = {};
};

struct Choice {
  Name name;
  Program program;    ///< computations alone
  Timeline timeline;  ///< of the program with its messages
};
/// Name::Auto: of the programs that suit a candidate's shape (one stage a rank: 1f1b, zb-h1, gpipe; two: interleaved,
/// zb-v; more: interleaved), the one with the least simulated makespan with messages as `how` says, among those whose
/// peak of bytes on every rank is at most `memory_limit_bytes` (0: no limit); the first of equals. Throws ConfigError
/// that lists each one's peak, and the least as the fix, where none fits.
Choice choose(const std::vector<Candidate>& candidates, Communication how, double memory_limit_bytes);
/// Of one shape, with overlapped messages.
Choice choose(const Shape& shape, const Costs& costs, double memory_limit_bytes);

}  // namespace megatron::schedule
