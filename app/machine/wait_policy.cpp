#include <unistd.h>

#include <cstring>

// How long OpenMP's threads spin while they wait for one another. libgomp spins for up to 15 ms before it sleeps: on a
// machine that runs anything else, a thread that spins takes the core from the very thread that it waits for. It reads
// the number once, through getenv() and before main(): hence this function stands in for the C library's, and knows a
// value for a variable that nobody has set. docs/decisions/0061-waiting-threads-sleep.md has the figures.
namespace {

char* set_value(const char* name) {
  const std::size_t size = std::strlen(name);
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    if (std::strncmp(*entry, name, size) == 0 && (*entry)[size] == '=') return *entry + size + 1;
  return nullptr;
}

char spin_count[] = "3000";

}  // namespace

extern "C" __attribute__((visibility("default"))) char* getenv(const char* name) noexcept {
  if (char* value = set_value(name)) return value;
  const bool ours = std::strcmp(name, "GOMP_SPINCOUNT") == 0 && set_value("OMP_WAIT_POLICY") == nullptr;
  return ours ? spin_count : nullptr;
}
