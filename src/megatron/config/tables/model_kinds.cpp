#include "megatron/config/tables/model_kinds.h"

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

const ModelTraits& model_traits(const std::string& architecture) {
  static constexpr const ModelTraits* kTraits[] = {
#define MEGATRON_MODEL(name) &models::name::kConfig,
#include "megatron/models/kinds.def"
#undef MEGATRON_MODEL
  };
  const std::vector<std::string> names = model_kinds();
  for (std::size_t i = 0; i < names.size(); ++i)
    if (architecture == names[i]) return *kTraits[i];
  return *kTraits[0];
}

std::vector<std::string> kinds_with(bool ModelTraits::*trait) {
  std::vector<std::string> names = model_kinds();
  std::erase_if(names, [&](const std::string& name) { return !(model_traits(name).*trait); });
  return names;
}

std::string names_with(bool ModelTraits::*trait, const char* last) {
  const std::vector<std::string> names = kinds_with(trait);
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) text += (i == 0 ? "" : i + 1 < names.size() ? ", " : last) + names[i];
  return text;
}

}  // namespace megatron::config
