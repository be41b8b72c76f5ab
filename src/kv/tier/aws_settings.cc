#include "kv/tier/aws_settings.h"

#include <cstdlib>

#include "base/file.h"

namespace quire {
namespace {

using Section = std::map<std::string, std::string>;

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  const std::size_t from = text.find_first_not_of(kSpace);
  if (from == text.npos) return {};
  return text.substr(from, text.find_last_not_of(kSpace) - from + 1);
}

Section section_of_file(const std::string& path, const std::string& section) {
  const Result<std::string> text = read_file(path);
  return text.ok() ? aws_file_section(text.value(), section) : Section();
}

std::string setting(const Section& of, const char* name) {
  const auto found = of.find(name);
  return found == of.end() ? std::string() : found->second;
}

}  // namespace

std::string system_environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::map<std::string, std::string> aws_file_section(std::string_view text,
                                                    std::string_view section) {
  Section found;
  bool inside = false;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view raw = text.substr(0, end), line = trimmed(raw);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#' || line.front() == ';') continue;
    if (line.front() == '[') {
      inside = line.back() == ']' && trimmed(line.substr(1, line.size() - 2)) == section;
      continue;
    }
    // An indented line belongs to the setting above it (a nested one).
    const std::size_t equals = line.find('=');
    if (!inside || equals == line.npos || raw.front() == ' ' || raw.front() == '\t') continue;
    found[std::string(trimmed(line.substr(0, equals)))] = trimmed(line.substr(equals + 1));
  }
  return found;
}

Result<AwsSettings> read_aws_settings(const std::string& profile, const Environment& environment) {
  const auto first_of = [&](std::initializer_list<const char*> names) {
    for (const char* name : names)
      if (std::string value = environment(name); !value.empty()) return value;
    return std::string();
  };
  const auto or_home = [&](const char* name, const char* below_home) {
    const std::string path = environment(name), home = environment("HOME");
    return !path.empty() || home.empty() ? path : home + below_home;
  };
  std::string wanted = profile.empty() ? environment("AWS_PROFILE") : profile;
  if (wanted.empty()) wanted = "default";
  const Section keys =
      section_of_file(or_home("AWS_SHARED_CREDENTIALS_FILE", "/.aws/credentials"), wanted);
  const Section config = section_of_file(or_home("AWS_CONFIG_FILE", "/.aws/config"),
                                         wanted == "default" ? wanted : "profile " + wanted);
  AwsSettings s;
  s.key_id = environment("AWS_ACCESS_KEY_ID");
  s.key = environment("AWS_SECRET_ACCESS_KEY");
  s.session_token = environment("AWS_SESSION_TOKEN");
  if (!profile.empty() || s.key_id.empty() || s.key.empty()) {
    const Section& from = keys.contains("aws_access_key_id") ? keys : config;
    s.key_id = setting(from, "aws_access_key_id");
    s.key = setting(from, "aws_secret_access_key");
    s.session_token = setting(from, "aws_session_token");
  }
  if (s.key_id.empty() || s.key.empty())
    return Error{
        Code::not_found,
        "no AWS credentials for profile '" + wanted +
            "'; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write them into "
            "~/.aws/credentials (`aws configure export-credentials` gives those of a role)"};
  s.region = first_of({"AWS_REGION", "AWS_DEFAULT_REGION"});
  if (s.region.empty()) s.region = setting(config, "region");
  s.endpoint = first_of({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
  if (s.endpoint.empty()) s.endpoint = setting(config, "endpoint_url");
  s.ca_file = environment("AWS_CA_BUNDLE");
  if (s.ca_file.empty()) s.ca_file = setting(config, "ca_bundle");
  return s;
}

}  // namespace quire
