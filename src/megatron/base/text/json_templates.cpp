#include <nlohmann/json.hpp>

// What cmake/templates/nlohmann/json.hpp promises to every other source.
MEGATRON_JSON_TEMPLATES(template)
