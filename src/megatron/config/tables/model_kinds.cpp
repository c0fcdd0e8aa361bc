#include "megatron/config/tables/model_kinds.h"

#include <algorithm>

#include "megatron/base/text/nearest.h"
#include "megatron/config/tables/model_kind_row.h"

#define MEGATRON_MODEL(name)                \
  namespace megatron::models::name {        \
  extern const config::ModelTraits kConfig; \
  }
#include "megatron/models/kinds.def"
#undef MEGATRON_MODEL

namespace megatron::config {

std::vector<std::string> model_kinds() {
  return {
#define MEGATRON_MODEL(name) #name,
#include "megatron/models/kinds.def"
#undef MEGATRON_MODEL
  };
}

std::size_t model_kind_row(const std::string& architecture) {
  const std::vector<std::string> names = model_kinds();
  const auto found = std::ranges::find(names, architecture);
  return found == names.end() ? 0 : static_cast<std::size_t>(found - names.begin());
}

const ModelTraits& model_traits(const std::string& architecture) {
  static constexpr const ModelTraits* kTraits[] = {
#define MEGATRON_MODEL(name) &models::name::kConfig,
#include "megatron/models/kinds.def"
#undef MEGATRON_MODEL
  };
  return *kTraits[model_kind_row(architecture)];
}

std::vector<std::string> kinds_with(bool ModelTraits::*trait) {
  std::vector<std::string> names = model_kinds();
  std::erase_if(names, [&](const std::string& name) { return !(model_traits(name).*trait); });
  return names;
}

std::string names_with(bool ModelTraits::*trait, const char* last) { return listed(kinds_with(trait), last); }

}  // namespace megatron::config
