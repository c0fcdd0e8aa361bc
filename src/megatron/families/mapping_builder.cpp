#include "megatron/families/mapping_builder.h"

#include <algorithm>
#include <stdexcept>
#include <variant>

#include "megatron/base/error.h"

namespace megatron::families {
namespace {

using Sizes = std::vector<std::int64_t>;

const std::vector<std::string>& named(const LayerNames& names, const std::string& ours) {
  const auto found = names.find(ours);
  if (found == names.end()) throw std::logic_error(concat("no name of theirs for ", ours));
  return found->second;
}

}  // namespace

void MappingBuilder::whole(const std::string& ours, const std::string& theirs, Sizes shape) {
  const Sizes origin(shape.size(), 0);
  mapping_[ours] = {shape, false, {{theirs, origin, origin, shape}}};
}

void MappingBuilder::norm(const std::string& ours, const std::string& theirs, const plan::ModelShape& shape) {
  whole(ours + ".weight", theirs + ".weight", {shape.hidden});
  if (shape.norms_have_bias()) whole(ours + ".bias", theirs + ".bias", {shape.hidden});
}

void MappingBuilder::linear(const std::string& ours, const std::string& theirs, std::int64_t out, std::int64_t in) {
  whole(ours + ".weight", theirs + ".weight", {out, in});
  whole(ours + ".bias", theirs + ".bias", {out});
}

void MappingBuilder::layer(const plan::LayerSpec& layer, const LayerNames& names) {
  const auto norm = [&](const std::string& ours, std::int64_t features) {
    const std::string theirs = named(names, ours).at(0);
    whole(layer.prefix + ours + ".weight", theirs + ".weight", {features});
    if (layer.norms_have_bias()) whole(layer.prefix + ours + ".bias", theirs + ".bias", {features});
  };
  for (std::size_t b = 0; b < layer.branches.size(); ++b) {
    const plan::Branch& branch = layer.branches[b];
    if (layer.norm_before(b)) norm(branch.norm(), layer.hidden);
    if (layer.norms.behind) norm(branch.out_norm(), layer.hidden);
    if (const auto* const attention = std::get_if<plan::SelfAttention>(&branch.inner);
        attention != nullptr && attention->learned_sinks())
      whole(layer.prefix + plan::SelfAttention::kSinks, named(names, plan::SelfAttention::kSinks).at(0),
            {attention->heads});
    if (const auto* const experts = std::get_if<plan::Experts>(&branch.inner);
        experts != nullptr && experts->router.bias)
      whole(layer.prefix + plan::Experts::kBias, named(names, plan::Experts::kBias).at(0), {experts->count});
    for (const plan::Linear& linear : branch.linears(layer.hidden)) {
      layer_linear(layer, linear, named(names, linear.name));
      for (std::size_t i = 0; i < linear.head_norms.size(); ++i) {
        const plan::SelfAttention& attention = layer.attention();
        norm(linear.head_norms[i], !linear.full_norms ? linear.head_size
                                   : i == 0           ? attention.query_rows()
                                                      : attention.key_rows());
      }
    }
  }
}

void MappingBuilder::layer_linear(const plan::LayerSpec& layer, const plan::Linear& linear,
                                  const std::vector<std::string>& names) {
  const std::vector<Rows> rows = rows_of(layer, linear, names.size());
  stacked(layer.prefix + linear.name + ".weight", rows, names, linear.inputs);
  if (linear.bias) stacked(layer.prefix + linear.name + ".bias", rows, names, 0);
}

std::vector<MappingBuilder::Rows> MappingBuilder::rows_of(const plan::LayerSpec& layer, const plan::Linear& linear,
                                                          std::size_t sources) const {
  using Split = plan::Linear::Split;
  const std::size_t parts = linear.split == Split::Groups                                   ? 3
                            : linear.split == Split::Pairs || linear.split == Split::Halves ? 2
                                                                                            : 1;
  if (sources != parts && (sources != 1 || linear.split == Split::Pairs))
    throw std::logic_error(concat(linear.name, " has ", parts, " parts, their names are ", sources));
  const std::int64_t d = linear.head_size;
  std::vector<Rows> rows;
  if (linear.split == Split::Groups && sources == 1 && by_groups_) {
    rows.push_back({0, 0, linear.outputs});
  } else if (linear.split == Split::Groups) {  // group after group: its heads' queries, then its key, then its value
    const plan::SelfAttention& attention = layer.attention();
    const std::int64_t queries = attention.query_rows() / attention.groups;
    const std::int64_t keys = sources == 1 ? attention.query_rows() : 0,
                       values = sources == 1 ? keys + attention.key_rows() : 0;
    for (std::int64_t group = 0; group < attention.groups; ++group) {
      rows.push_back({0, group * queries, queries});
      rows.push_back({sources == 1 ? 0u : 1u, keys + group * d, d});
      rows.push_back({sources == 1 ? 0u : 2u, values + group * d, d});
    }
  } else if (linear.split == Split::Pairs) {  // head after head: its key, then its value
    for (std::int64_t first = 0; first < linear.outputs / 2; first += d)
      for (const std::size_t source : {0, 1}) rows.push_back({source, first, d});
  } else {
    const std::int64_t part = linear.outputs / static_cast<std::int64_t>(sources);
    for (std::size_t source = 0; source < sources; ++source) rows.push_back({source, 0, part});
  }
  return rows;
}

void MappingBuilder::stacked(const std::string& ours, const std::vector<Rows>& parts,
                             const std::vector<std::string>& sources, std::int64_t columns) {
  MappedTensor tensor{.shape = {}, .transposed = transposed_ && columns > 0, .pieces = {}};
  const std::string end = columns > 0 ? ".weight" : ".bias";
  std::int64_t row = 0;
  for (const Rows& part : parts) {
    MappedSlice slice{.source = sources[part.source] + end, .to = {row}, .from = {part.first}, .shape = {part.count}};
    if (columns > 0) {
      slice.to.push_back(0);
      slice.from.push_back(0);
      slice.shape.push_back(columns);
    }
    if (tensor.transposed) std::reverse(slice.from.begin(), slice.from.end());
    tensor.pieces.push_back(std::move(slice));
    row += part.count;
  }
  tensor.shape = columns > 0 ? Sizes{row, columns} : Sizes{row};
  mapping_[ours] = std::move(tensor);
}

}  // namespace megatron::families
