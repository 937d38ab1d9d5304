/* A rank of OpenMPI at the benchmark's service: see src/control.rs for what is said.
 * Usage: openmpi CONTROL; the rank and the number of workers are MPI's. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

static void fail(const char *what)
{
	perror(what);
	MPI_Abort(MPI_COMM_WORLD, 1);
	exit(1);
}

/* The values of a rank, as in xagg_testbed::exact. */
static float integer(int rank, size_t index)
{
	return (float)((int)((index * 31 + (size_t)rank * 17) % 2001) - 1000);
}

static int is_exact(const float *values, size_t length, int workers)
{
	for (size_t i = 0; i < length; i++) {
		float sum = 0;
		for (int rank = 0; rank < workers; rank++)
			sum += integer(rank, i);
		if (values[i] != sum)
			return 0;
	}
	return 1;
}

static unsigned long long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000ULL + time.tv_nsec;
}

static FILE *reach(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int control = socket(AF_UNIX, SOCK_STREAM, 0);
	FILE *lines;

	if (strlen(path) >= sizeof(address.sun_path)) {
		fprintf(stderr, "the path of the control socket is too long: %s\n", path);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	strcpy(address.sun_path, path);
	if (control < 0 || connect(control, (struct sockaddr *)&address, sizeof(address)))
		fail(path);
	lines = fdopen(control, "r+");
	if (!lines)
		fail("fdopen");
	setvbuf(lines, NULL, _IOLBF, BUFSIZ);
	return lines;
}

static float *fill(float *values, int rank, size_t length)
{
	values = realloc(values, length * sizeof(*values));
	if (!values)
		fail("realloc");
	for (size_t i = 0; i < length; i++)
		values[i] = integer(rank, i);
	return values;
}

static void serve(FILE *lines, int rank, int workers)
{
	float *values = NULL;
	size_t number, length = 0;
	char line[100], word[20];

	fprintf(lines, "rank %d\n", rank);
	while (fgets(line, sizeof(line), lines)) {
		number = 0;
		if (sscanf(line, "%19s %zu", word, &number) < 1)
			break;
		/* Between reading and writing a stream wants to be told. */
		fseek(lines, 0, SEEK_CUR);
		if (!strcmp(word, "fill")) {
			length = number;
			values = fill(values, rank, length);
			fprintf(lines, "ready\n");
		} else if (!strcmp(word, "go")) {
			unsigned long long begin = now();
			for (size_t i = 0; i < number; i++)
				MPI_Allreduce(MPI_IN_PLACE, values, length, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
			fprintf(lines, "%llu %llu\n", begin, now());
		} else if (!strcmp(word, "check")) {
			fprintf(lines, "%s\n", is_exact(values, length, workers) ? "exact" : "wrong");
		} else {
			fprintf(lines, "-\n");
			if (!strcmp(word, "end"))
				break;
		}
		fseek(lines, 0, SEEK_CUR);
	}
	free(values);
}

int main(int argc, char **argv)
{
	int rank, workers;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &workers);
	if (argc == 2)
		serve(reach(argv[1]), rank, workers);
	MPI_Finalize();
	return argc == 2 ? 0 : 2;
}
