#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace megatron::corpus {

/// Host and path of a URL, as lists are compared with them: without scheme, user and port; the host in lower case
/// without a dot at its end; path and query as they are, without fragment and without one slash at the end.
struct UrlParts {
  std::string host;
  std::string address;  ///< host and path
};
UrlParts url_parts(std::string_view url);

/// Sites and pages whose documents are not wanted.
class Blocklist {
 public:
  /// Adds the domains of a file, one a line: each blocks itself and its subdomains ("example.org" blocks
  /// "a.example.org" and not "anexample.org"); a "*." or "." before it changes nothing. White space around, a byte
  /// order mark, empty lines and lines from '#' on are skipped. Throws ConfigError naming the line where it has spaces
  /// inside or no domain, one of more than 255 bytes, or with characters that no host has.
  void add_domains(const std::string& path);
  /// Adds the URLs of a file in the same form: each blocks itself alone, whatever its scheme.
  void add_urls(const std::string& path);

  bool empty() const { return domains_.empty() && urls_.empty(); }
  std::size_t size() const { return domains_.size() + urls_.size(); }

  bool blocks(std::string_view url) const;

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  using Names = std::unordered_set<std::string, Hash, std::equal_to<>>;

  Names domains_, urls_;
};

}  // namespace megatron::corpus
