// kv/tier/aws_settings.h - credentials, region and endpoint of an S3 store, from where AWS's own tools
// have them: environment variables first, then the files in ~/.aws. Never from the command line.
//
//   AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN
//   AWS_REGION, AWS_DEFAULT_REGION, AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_CA_BUNDLE
//   AWS_PROFILE, AWS_SHARED_CREDENTIALS_FILE (~/.aws/credentials), AWS_CONFIG_FILE (~/.aws/config)
//
//   TRY(const AwsSettings aws, read_aws_settings("", system_environment));
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "base/result.h"

namespace quire {

struct AwsSettings {
  std::string key_id, key, session_token;
  std::string region;    // empty: not said
  std::string endpoint;  // empty: Amazon's
  std::string ca_file;
};

// A variable's value; empty: it is not set.
using Environment = std::function<std::string(const char* name)>;
std::string system_environment(const char* name);

// `profile` wins over AWS_PROFILE. Without credentials it is an error that says where they may be.
Result<AwsSettings> read_aws_settings(const std::string& profile, const Environment& environment);

// The settings of one section of such a file, by name.
std::map<std::string, std::string> aws_file_section(std::string_view text,
                                                    std::string_view section);

}  // namespace quire
