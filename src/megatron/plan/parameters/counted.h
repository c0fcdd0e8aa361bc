#pragma once
#include <cstdint>
#include <vector>

#include "megatron/plan/parameters/shards.h"

namespace megatron::plan {

/// What figures over the model count on a rank: `whole`, what every tensor-parallel rank has (on the first of them),
/// and weights by who holds them, where several ranks hold the same. `expert_whole`: what each of the ranks that split
/// an expert has of it whole.
struct Counts {
  bool whole = true, dense = true, experts = true, expert_whole = true;

  // NOLINTNEXTLINE(google-explicit-constructor): of one copy of the model that is all there is to say
  Counts(bool counts_whole) : whole(counts_whole), expert_whole(counts_whole) {}
  Counts(bool counts_whole, bool counts_dense, bool counts_experts, bool counts_expert_whole)
      : whole(counts_whole), dense(counts_dense), experts(counts_experts), expert_whole(counts_expert_whole) {}
  bool whole_of(const ParameterSpec& spec) const { return spec.of_expert ? expert_whole : whole; }
  bool counts(const ParameterSpec& spec) const { return spec.of_expert ? experts : dense; }
};

/// The ranges of a parameter's slice on one rank that figures over the model count there, so that over all ranks of one
/// model copy every element counts once: of what several ranks hold one copy, that of the first tensor-parallel rank
/// (`counts_whole`: this is it), of the first of the ranks that share a piece, of the first of a tied embedding's
/// stages.
std::vector<Range> counted_ranges(const ParameterSpec& spec, bool counts_whole);

/// counted_ranges() without the rows that pad the vocabulary, of which layouts have different numbers. `vocab`: its
/// tokens.
std::vector<Range> counted_ranges(const ParameterSpec& spec, bool counts_whole, std::int64_t vocab);

}  // namespace megatron::plan
