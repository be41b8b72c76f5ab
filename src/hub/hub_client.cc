#include "hub/hub_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <thread>

#include "base/json.h"

namespace quire {
namespace {

constexpr int kTriesMax = 5;
constexpr std::uint32_t kWaitSecondsMax = 300;
constexpr std::size_t kHubFilesMax = 100'000;
constexpr std::uint64_t kHubFileBytesMax = std::uint64_t{1}
                                           << 44;  // no disk here has room for more

bool is_hex(std::string_view text, std::size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

template <class Number>
bool hub_number(std::string_view text, Number& into) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), into);
  return error == std::errc{} && end == text.data() + text.size();
}

Error hub_lies(std::string_view where, std::string_view what) {
  return {Code::corrupt, fmt::format("{}: the hub {}; nothing of it was kept", where, what)};
}

std::string member(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::optional<std::uint64_t> size_member(const Json& object) {
  const auto found = object.find("size");
  if (found == object.end() || !found->is_number_unsigned()) return std::nullopt;
  return found->get<std::uint64_t>();
}

// What a person can do about a refusal.
Error refused_by_hub(const WebAnswer& answer, const HubName& name, const HubAccess& access) {
  const std::string said(answer.header("x-error-message"));
  const std::string why = said.empty() ? "" : fmt::format(" ({})", said.substr(0, 200));
  const std::string at = answer.url.origin();
  switch (answer.status) {
    case 401:
      return {
          Code::unavailable,
          access.token.empty()
              ? fmt::format("{} does not show {} without a token{}: is the name right? If it is "
                            "private or gated, set HF_TOKEN",
                            at, name.full(), why)
              : fmt::format("{} does not take this token for {}{}: is the name right, and "
                            "HF_TOKEN valid?",
                            at, name.full(), why)};
    case 403:
      return {Code::unavailable,
              fmt::format("{} refuses {}{}: it may be gated; accept its terms on {}/{}, and set "
                          "HF_TOKEN to a token that may read it",
                          at, name.full(), why, access.endpoint, name.full())};
    case 404:
      return {Code::not_found,
              fmt::format("{} has no {}{}: is the name right?", at, name.text(), why)};
    default:
      return {Code::unavailable,
              fmt::format("{} answers {} for {}{}", at, answer.status, name.full(), why)};
  }
}

}  // namespace

Result<HubListing> parse_hub_listing(std::string_view text, const HubName& name) {
  const std::string where = name.full();
  TRY(const Json json, parse_json(text, {.values_max = 20 * kHubFilesMax}));
  if (!json.is_object()) return hub_lies(where, "answers with something that is no listing");
  HubListing listing;
  listing.commit = member(json, "sha");
  if (!is_hex(listing.commit, 40)) return hub_lies(where, "names no commit");
  const auto siblings = json.find("siblings");
  if (siblings == json.end() || !siblings->is_array()) return hub_lies(where, "lists no files");
  if (siblings->size() > kHubFilesMax) return hub_lies(where, "lists too many files");
  for (const Json& s : *siblings) {
    if (!s.is_object()) return hub_lies(where, "lists something that is no file");
    HubFile file;
    file.path = member(s, "rfilename");
    if (!safe_hub_path(file.path))
      return hub_lies(
          where, fmt::format("lists a file named '{}', which would not lie in its folder",
                             Json(file.path).dump(-1, ' ', true, Json::error_handler_t::replace)));
    const auto large = s.find("lfs");
    const bool lfs = large != s.end() && large->is_object();
    const std::optional<std::uint64_t> size = size_member(lfs ? *large : s);
    file.digest = lfs ? member(*large, "sha256") : member(s, "blobId");
    if (lfs && file.digest.empty()) file.digest = member(*large, "oid");
    file.known = size.has_value() && !file.digest.empty();
    if (!file.digest.empty() && !is_hex(file.digest, lfs ? 64 : 40))
      return hub_lies(where, fmt::format("gives {} a digest that is none", file.path));
    if (lfs && size_member(s).value_or(size.value_or(0)) != size.value_or(0))
      return hub_lies(where, fmt::format("gives {} two sizes", file.path));
    file.size = size.value_or(0);
    if (file.size > kHubFileBytesMax)
      return hub_lies(where, fmt::format("lists {} with {} bytes", file.path, file.size));
    listing.files.push_back(std::move(file));
  }
  return listing;
}

Result<HubClient> HubClient::open(const HubAccess& access, Log log) {
  if (access.offline)
    return Error{Code::unavailable, "HF_HUB_OFFLINE is set, so nothing is fetched"};
  auto endpoint = WebUrl::parse(access.endpoint);
  if (!endpoint.ok()) return Error{Code::invalid, "HF_ENDPOINT: " + endpoint.error().message};
  return HubClient(access, std::move(endpoint.value()), std::move(log));
}

std::vector<HttpHeader> HubClient::secrets() const {
  if (access_.token.empty()) return {};
  return {{"Authorization", "Bearer " + access_.token}};
}

WebUrl HubClient::file_url(const HubName& name, const std::string& commit,
                           const std::string& path) const {
  WebUrl url = endpoint_;
  if (!url.target.ends_with('/')) url.target += '/';
  url.target += name.full() + "/resolve/" + commit + "/" + percent_encode_path(path);
  return url;
}

Result<WebAnswer> HubClient::ask(const WebUrl& url, const WebAsk& ask, const HubName& name) {
  for (int tries = 1;; ++tries) {
    const auto answer = web_.ask(url, ask);
    std::uint32_t wait = 1u << (tries - 1);
    std::string why;
    if (!answer.ok()) {
      why = answer.error().message;
      const bool distrusted =
          why.find("certificate") != why.npos;  // it would be the next time, too
      if (answer.error().code != Code::unavailable || distrusted) return answer.error();
    } else {
      const int status = answer.value().status;
      if (status >= 200 && status < 300) return answer;
      if (status != 429 && status < 500) return refused_by_hub(answer.value(), name, access_);
      why = fmt::format("{} answers {}", answer.value().url.origin(), status);
      std::uint32_t asked = 0;
      if (hub_number(answer.value().header("retry-after"), asked)) wait = asked;
      if (wait > kWaitSecondsMax)
        return Error{
            Code::unavailable,
            fmt::format("{} and asks to come back in {} s; try again then, or set HF_TOKEN: "
                        "those with a token may ask more often",
                        why, wait)};
    }
    if (tries == kTriesMax)
      return Error{Code::unavailable, fmt::format("{}; gave up after {} tries", why, tries)};
    if (log_) log_(fmt::format("{}; trying again in {} s", why, wait));
    std::this_thread::sleep_for(std::chrono::seconds(wait));
  }
}

Result<HubListing> HubClient::list(const HubName& name) {
  WebUrl url = endpoint_;
  if (!url.target.ends_with('/')) url.target += '/';
  url.target += "api/models/" + name.full() + "/revision/" + percent_encode_path(name.revision) +
                "?blobs=true";
  TRY(const WebAnswer answer,
      ask(url, {.headers = {{"Accept", "application/json"}}, .private_headers = secrets()}, name));
  return parse_hub_listing(answer.body, name);
}

Status HubClient::complete(const HubName& name, const std::string& commit, HubFile& file) {
  if (file.known) return {};
  std::string digest, size, plain_size;
  const WebAsk head{.head_only = true,
                    .headers = {{"Accept-Encoding", "identity"}},
                    .private_headers = secrets(),
                    .each = [&](const WebAnswer& a) {
                      const auto keep = [&](std::string& into, const char* header) {
                        if (into.empty()) into = a.header(header);
                      };
                      keep(digest, "x-linked-etag");
                      keep(size, "x-linked-size");
                      if (a.status == 200) {
                        keep(digest, "etag");
                        keep(plain_size, "content-length");
                      }
                    }};
  TRY([[maybe_unused]] const WebAnswer answer, ask(file_url(name, commit, file.path), head, name));
  std::string_view tag = digest;
  if (tag.starts_with("W/")) tag.remove_prefix(2);
  if (tag.size() >= 2 && tag.front() == '"') tag = tag.substr(1, tag.size() - 2);
  if ((!is_hex(tag, 64) && !is_hex(tag, 40)) ||
      !hub_number(size.empty() ? plain_size : size, file.size) || file.size > kHubFileBytesMax)
    return hub_lies(name.full(), fmt::format("tells no size and digest of {}", file.path));
  file.digest = tag;
  file.known = true;
  return {};
}

Status HubClient::read(const HubName& name, const std::string& commit, const HubFile& file,
                       std::uint64_t from, std::uint64_t to,
                       const std::function<Status(std::string_view)>& take) {
  const bool ranged = to > 0;
  const std::uint64_t end = ranged ? to : file.size;
  std::uint64_t at = from;
  std::string lie;
  const auto look = [&](const WebAnswer& head) {
    std::string_view linked = head.header("x-linked-size");
    std::uint64_t number = 0;
    if (!linked.empty() && (!hub_number(linked, number) || number != file.size))
      lie = fmt::format("lists {} with {} bytes and sends {}", file.path, file.size, linked);
    std::string_view range = head.header("content-range");  // bytes 0-99/1000
    if (head.status == 206 && !range.ends_with(fmt::format("/{}", file.size)))
      lie = fmt::format("lists {} with {} bytes and sends '{}'", file.path, file.size, range);
  };
  WebAsk ask{.headers = {{"Accept-Encoding", "identity"}}, .private_headers = secrets()};
  ask.each = look;
  ask.body = [&](const WebAnswer& head, std::string_view bytes) -> Status {
    if (at == from) {
      look(head);
      if (!lie.empty()) return hub_lies(name.full(), lie);
      if (ranged && head.status == 200)
        return Error{Code::unsupported, head.url.origin() + ": sends whole files only"};
      const std::string wanted = fmt::format("bytes {}-{}/", from, end - 1);
      if (ranged && !head.header("content-range").starts_with(wanted))
        return hub_lies(name.full(),
                        fmt::format("sends other bytes of {} than were asked for", file.path));
    }
    if (bytes.size() > end - at)
      return hub_lies(name.full(),
                      fmt::format("sends more than the {} bytes of {}", file.size, file.path));
    TRY_STATUS(take(bytes));
    at += bytes.size();
    return {};
  };
  // What has come stays: a lost connection goes on where it was lost, as often as it moves.
  int tries = 1;
  while (true) {
    const std::uint64_t before = at;
    from = at;
    if (ranged) {
      ask.headers.resize(1);
      ask.headers.push_back({"Range", fmt::format("bytes={}-{}", at, end - 1)});
    }
    const auto answer = web_.ask(file_url(name, commit, file.path), ask);
    if (!lie.empty()) return hub_lies(name.full(), lie);
    if (answer.ok()) {
      const int status = answer.value().status;
      if (status == 200 || status == 206) {
        if (at == end) return {};
        return hub_lies(name.full(),
                        fmt::format("sends fewer than the {} bytes of {}", file.size, file.path));
      }
      if (status != 429 && status < 500) return refused_by_hub(answer.value(), name, access_);
    } else if (answer.error().code != Code::unavailable) {
      return answer.error();
    }
    if (!ranged && at > 0)
      return Error{Code::unavailable,
                   fmt::format("{}: the connection was lost, and {} sends whole files only",
                               file.path, endpoint_.origin())};
    if (at > before) tries = 0;
    if (++tries > kTriesMax)
      return answer.ok() ? Status(refused_by_hub(answer.value(), name, access_))
                         : Status(answer.error());
    std::uint32_t wait = tries == 1 ? 0 : 1u << (tries - 2);
    if (answer.ok()) hub_number(answer.value().header("retry-after"), wait);
    wait = std::min(wait, kWaitSecondsMax);
    if (log_)
      log_(fmt::format(
          "{}: {}; {}", file.path,
          answer.ok() ? fmt::format("status {}", answer.value().status) : answer.error().message,
          wait == 0 ? "going on at once" : fmt::format("trying again in {} s", wait)));
    if (wait > 0) std::this_thread::sleep_for(std::chrono::seconds(wait));
  }
}

}  // namespace quire
