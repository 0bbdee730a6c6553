/* Runs a SavedModel on lines of text, with TensorFlow's C API alone.

   client MODEL LIBRARY,LIBRARY INPUT,INPUT OUTPUT INDEX < TEXTS

   Inputs and the output are names of the graph's operations. With more than one input, each takes
   a line in turn. Prints the output, an element a line. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"

#define MOST 4096

static void check(TF_Status* status) {
  if (TF_GetCode(status) == TF_OK) return;
  fprintf(stderr, "%s\n", TF_Message(status));
  exit(1);
}

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  TF_Status* status = TF_NewStatus();
  for (char* name = strtok(argv[2], ","); name; name = strtok(NULL, ",")) {
    TF_LoadLibrary(name, status);
    check(status);
  }
  TF_Graph* graph = TF_NewGraph();
  const char* tags[] = {"serve"};
  TF_Session* session = TF_LoadSessionFromSavedModel(
      TF_NewSessionOptions(), NULL, argv[1], tags, 1, graph, NULL, status);
  check(status);

  static char line[1 << 20];
  static char* texts[MOST];
  int64_t count = 0, inputs = 0;
  while (count < MOST && fgets(line, sizeof line, stdin)) {
    line[strcspn(line, "\n")] = 0;
    texts[count++] = strdup(line);
  }
  TF_Output places[8];
  for (char* name = strtok(argv[3], ","); name && inputs < 8; name = strtok(NULL, ","))
    places[inputs++] = (TF_Output){TF_GraphOperationByName(graph, name), 0};
  int64_t rows = count / inputs;
  TF_Tensor* values[8];
  for (int64_t i = 0; i < inputs; ++i) {
    values[i] = TF_AllocateTensor(TF_STRING, &rows, 1, rows * sizeof(TF_TString));
    TF_TString* strings = TF_TensorData(values[i]);
    for (int64_t row = 0; row < rows; ++row) {
      const char* text = texts[row * inputs + i];
      TF_StringInit(&strings[row]);
      TF_StringCopy(&strings[row], text, strlen(text));
    }
  }
  TF_Output output = {TF_GraphOperationByName(graph, argv[4]), atoi(argv[5])};
  TF_Tensor* result = NULL;
  TF_SessionRun(session, NULL, places, values, inputs, &output, &result, 1, NULL, 0, NULL, status);
  check(status);

  const void* data = TF_TensorData(result);
  for (int64_t i = 0; i < TF_TensorElementCount(result); ++i) {
    if (TF_TensorType(result) == TF_FLOAT) {
      printf("%.9g\n", ((const float*)data)[i]);
    } else if (TF_TensorType(result) == TF_INT32) {
      printf("%d\n", ((const int*)data)[i]);
    } else {
      const TF_TString* text = (const TF_TString*)data + i;
      printf("%.*s\n", (int)TF_StringGetSize(text), TF_StringGetDataPointer(text));
    }
  }
  return 0;
}
