// Continues a text: example MODEL TEXT
#include <quire.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  quire_model* model = quire_open(argv[1], NULL);
  if (!model) return fprintf(stderr, "%s\n", quire_last_error()), 1;
  uint32_t ids[512];
  int64_t count = quire_tokenize(model, argv[2], strlen(argv[2]), 0, ids, 512);
  quire_session* session = quire_session_new(model, 1024);
  if (!session || count > 512 || quire_feed(session, ids, (size_t)count) != QUIRE_OK)
    return fprintf(stderr, "%s\n", quire_last_error()), 1;
  for (int i = 0; i < 16; ++i) {
    uint32_t token;
    char text[256];
    if (quire_step(&session, 1) != QUIRE_OK || quire_sample(session, NULL, &token) != QUIRE_OK)
      return fprintf(stderr, "%s\n", quire_last_error()), 1;
    if (quire_is_end(model, token)) break;
    fwrite(text, 1, (size_t)quire_token_text(model, token, text, sizeof text), stdout);
    quire_feed(session, &token, 1);
  }
  printf("\n");
  quire_session_free(session);
  quire_close(model);
}
