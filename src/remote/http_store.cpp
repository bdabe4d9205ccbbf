/// Directories of web servers: by the page that lists them, else by the names that checkpoints have.

#include <algorithm>
#include <array>

#include "core/fail.hpp"
#include "remote/fetcher.hpp"

namespace glu_ckpt {
namespace {

/// Asked for where a server lists nothing. Shards are named by the index.
constexpr auto kKnownNames = std::to_array<std::string_view>({"config.json",
                                                              "model.safetensors.index.json",
                                                              "model.safetensors",
                                                              "glu_ckpt.json",
                                                              "glu_ckpt.extras",
                                                              "generation_config.json",
                                                              "tokenizer.json",
                                                              "tokenizer_config.json",
                                                              "tokenizer.model",
                                                              "special_tokens_map.json",
                                                              "added_tokens.json",
                                                              "vocab.json",
                                                              "merges.txt",
                                                              "chat_template.jinja",
                                                              "preprocessor_config.json",
                                                              "pytorch_model.bin.index.json",
                                                              "pytorch_model.bin",
                                                              "latest_checkpointed_iteration.txt",
                                                              ".metadata",
                                                              "common.pt",
                                                              "metadata.json"});

std::string unescape(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = text.substr(i);
    const bool is_ampersand = rest.starts_with("&amp;");
    out += is_ampersand ? '&' : text[i];
    if (is_ampersand) i += 4;
  }
  return out;
}

/// Gives each href of a page to `use`, decoded.
template <typename Use>
void for_each_link(std::string_view page, const Use& use) {
  const std::string lower = lower_case(page);
  for (std::size_t at = lower.find("href"); at != lower.npos; at = lower.find("href", at + 1)) {
    std::size_t begin = lower.find_first_not_of(" \t\r\n", at + 4);
    if (begin == lower.npos || lower[begin] != '=') continue;
    begin = lower.find_first_not_of(" \t\r\n", begin + 1);
    if (begin == lower.npos || (lower[begin] != '"' && lower[begin] != '\'')) continue;
    const std::size_t end = lower.find(lower[begin], begin + 1);
    if (end == lower.npos) return;
    use(unescape(page.substr(begin + 1, end - begin - 1)));
  }
}

class HttpStore final : public RemoteStore {
 public:
  HttpStore(const std::string& root, Url url) : RemoteStore(root), url_(std::move(url)) {
    while (url_.path.ends_with('/')) url_.path.pop_back();
  }

  void list(const std::string& directory, RemoteTree& tree, Fetcher& fetcher) const override {
    Url url = url_of(directory);
    if (!url.path.ends_with('/')) url.path += '/';
    const Fetcher::Document page = fetcher.document(url, name_of(directory), {401, 403, 404, 405, 410});
    const bool is_page =
        page.head.status == 200 && lower_case(page.head.find("content-type").value_or("")).starts_with("text/html");
    int found = 0;
    if (is_page)
      for_each_link(page.text, [&](const std::string& link) { found += add_link(link, url, directory, tree) ? 1 : 0; });
    // A refusal of the page says nothing about the files.
    tree.find(directory)->must_probe = found == 0;
  }

  std::span<const std::string_view> known_names() const override { return kKnownNames; }

  Url url_of(const std::string& file) const override {
    Url url = url_;
    if (!file.empty()) url.path += "/" + percent_encode(file, "/");
    if (url.path.empty()) url.path = "/";
    return url;
  }

  HeaderLines credentials(const Url& /*url*/) const override { return {}; }

  std::string advice(const HttpHead& head) const override {
    return head.status == 404 || head.status == 410
               ? "check the address"
               : "servers that ask for a password are not read; copy the checkpoint to this machine";
  }

 private:
  /// Returns true for a link to something in the directory.
  bool add_link(const std::string& link, const Url& page, const std::string& directory, RemoteTree& tree) const {
    const auto to = follow_location(page, link.substr(0, link.find('#')));
    if (!to || to->origin() != page.origin() || !to->query.empty() || !to->path.starts_with(page.path)) return false;
    std::string_view rest = std::string_view(to->path).substr(page.path.size());
    const bool is_directory = rest.ends_with('/');
    if (is_directory) rest.remove_suffix(1);
    const auto name = percent_decode(rest);
    if (!name || name->empty() || name->find('/') != name->npos || *name == "." || *name == "..") return false;
    tree.add(directory.empty() ? *name : directory + "/" + *name, is_directory);
    return true;
  }

  Url url_;
};

}  // namespace

std::unique_ptr<RemoteStore> make_http_store(const std::string& root) {
  const auto url = parse_url(percent_encode(root, "%:/?#[]@!$&'()*+,;="));
  if (!url) fail(ErrorCode::Usage, {root, {}}, "{}: is no address such as https://host/directory", root);
  if (!url->user.empty() || !url->query.empty())
    fail(ErrorCode::Usage, {url->shown(), {}},
         "{}: passwords and queries (?...) in an address are not taken, for records would keep them; name a directory "
         "or a file that needs none",
         url->shown());
  return std::make_unique<HttpStore>(root, *url);
}

}  // namespace glu_ckpt
