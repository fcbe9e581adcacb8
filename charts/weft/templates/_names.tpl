{{/*
Names are fixed: there is one Weft in a cluster, and certificates and the operator's code name the
service accounts, the Service and the Lease.
*/}}

{{- define "weft.labels" -}}
app.kubernetes.io/part-of: weft
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "weft.operator.selector" -}}
app.kubernetes.io/name: weft-operator
{{- end }}

{{- define "weft.agent.selector" -}}
app.kubernetes.io/name: weft-agent
{{- end }}

{{- define "weft.tag" -}}
{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/*
A map as CEL writes it. Its values are of several types, which CEL takes for a mistake unless they are dyn.
*/}}
{{- define "weft.cel.map" -}}
{{- $entries := list }}
{{- range $key, $value := . }}
{{- $entries = append $entries (printf "%q: dyn(%s)" $key (toJson $value)) }}
{{- end }}
{{- printf "{%s}" (join ", " $entries) }}
{{- end }}
