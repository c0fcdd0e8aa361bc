#include "megatron/base/ranks/run_key.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "megatron/base/error.h"
#include "megatron/base/ranks/host_address.h"

namespace megatron {
namespace {

constexpr std::size_t kTagBytes = 32, kNameBytes = 16, kMinSecret = 16, kMaxSecret = 4096;

void start_sodium() {
  if (sodium_init() < 0) throw std::runtime_error("libsodium cannot be started: no source of random numbers");
}

[[noreturn]] void refuse_file(const std::string& path, const std::string& why) {
  throw ConfigError(rule_got_fix("MEGATRON_RUN_SECRET_FILE must name a file of yours that nobody else may read.",
                                 concat(path, ": ", why),
                                 "name a new one: (umask 077; openssl rand -hex 32 > ~/run.secret), and "
                                 "MEGATRON_RUN_SECRET_FILE=~/run.secret for every rank"));
}

std::string read_secret_file(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) refuse_file(path, std::strerror(errno));
  struct stat info {};
  std::string text(kMaxSecret, '\0');
  const bool known = fstat(fd, &info) == 0;
  const bool regular = known && S_ISREG(info.st_mode);
  const ssize_t size = regular ? read(fd, text.data(), text.size()) : 0;
  close(fd);
  if (!regular) refuse_file(path, "no regular file");
  if ((info.st_mode & 077) != 0)
    refuse_file(path, concat("mode ", std::oct, info.st_mode & 0777, ": others may read or write it"));
  if (info.st_uid != geteuid()) refuse_file(path, "it belongs to another user");
  if (size < 0) refuse_file(path, "it cannot be read");
  text.resize(static_cast<std::size_t>(size));
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  return text;
}

}  // namespace

RunKey::RunKey(const std::string& secret) : key_(crypto_generichash_KEYBYTES) {
  start_sodium();
  const std::string text = "megatron run key 1:" + secret;
  crypto_generichash(key_.data(), key_.size(), reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                     nullptr, 0);
}

RunKey::Bytes RunKey::hash(const std::string& purpose, const std::string& key, const Bytes& value,
                           std::size_t size) const {
  Bytes input(purpose.begin(), purpose.end());
  input.push_back(0);
  for (int shift = 0; shift < 64; shift += 8)
    input.push_back(static_cast<std::uint8_t>(static_cast<std::uint64_t>(key.size()) >> shift));
  input.insert(input.end(), key.begin(), key.end());
  input.insert(input.end(), value.begin(), value.end());
  Bytes result(size);
  crypto_generichash(result.data(), result.size(), input.data(), input.size(), key_.data(), key_.size());
  return result;
}

std::string RunKey::name(const std::string& key) const {
  const Bytes bytes = hash("name", key, {}, kNameBytes);
  std::string text(2 * kNameBytes + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), bytes.data(), bytes.size());
  text.pop_back();
  return text;
}

RunKey::Bytes RunKey::seal(const std::string& key, const Bytes& value) const {
  Bytes result = hash("value", key, value, kTagBytes);
  result.insert(result.end(), value.begin(), value.end());
  return result;
}

std::optional<RunKey::Bytes> RunKey::open(const std::string& key, const Bytes& sealed) const {
  if (sealed.size() < kTagBytes) return std::nullopt;
  Bytes value(sealed.begin() + kTagBytes, sealed.end());
  const Bytes tag = hash("value", key, value, kTagBytes);
  if (sodium_memcmp(tag.data(), sealed.data(), kTagBytes) != 0) return std::nullopt;
  return value;
}

std::string random_secret() {
  start_sodium();
  std::array<unsigned char, 32> bytes{};
  randombytes_buf(bytes.data(), bytes.size());
  std::string text(2 * bytes.size() + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), bytes.data(), bytes.size());
  text.pop_back();
  return text;
}

bool is_loopback(const std::string& host) {
  const auto is_local = [](const HostAddress& address) {
    if (address.family() == AF_INET)
      return ntohl(reinterpret_cast<const sockaddr_in*>(address.get())->sin_addr.s_addr) >> 24 == 127;
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address.get());
    return address.family() == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
  };
  try {
    return std::ranges::all_of(addresses_of(host, 0), is_local);
  } catch (const HostError&) {
    return false;
  }
}

std::string secret_of(const LaunchedRank& place) {
  std::string secret = place.secret;
  if (secret.empty() && !place.secret_file.empty()) {
    secret = read_secret_file(place.secret_file);
    if (secret.empty()) refuse_file(place.secret_file, "it is empty");
  }
  if (secret.empty() && !is_loopback(place.address))
    throw ConfigError(rule_got_fix(
        "Ranks that meet where other hosts can reach them must share a secret.",
        concat("the store at ", place.address, ":", place.port,
               ", and neither MEGATRON_RUN_SECRET nor MEGATRON_RUN_SECRET_FILE"),
        "export MEGATRON_RUN_SECRET=\"$(openssl rand -hex 32)\", one value for all ranks (docs/launching.md)"));
  if (!secret.empty() && secret.size() < kMinSecret)
    throw ConfigError(rule_got_fix(concat("The secret of a run must have at least ", kMinSecret, " characters."),
                                   concat(secret.size(), " characters"), "openssl rand -hex 32"));
  return secret;
}

}  // namespace megatron
